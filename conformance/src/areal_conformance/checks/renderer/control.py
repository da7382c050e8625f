"""What somebody writes stays text: the text of a control token never becomes that token, wherever it stands.

Knows: which tokens those are, and how their texts are hidden in other texts.
Does not know: what a family writes with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from areal_conformance.benches.conversations import CONTROL
from areal_conformance.benches.renderer import Bound, RendererBench
from areal_conformance.benches.renderer_places import ANSWERS, FOLLOWING, PLACES, WORD, reads_as, told
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect

_RENDER = "renderer#render"
_ODD = ("\ufdd0", "\ue000", "\u200b", "\ufdd0\ufdd1")
"""Letters that nobody sees, and that a renderer may have taken for its own marks."""


def _forging(bound: Bound) -> str:
    """Return a text with every control token in it: alone, beside another, around another, with odd letters inside."""
    words = sorted(bound.controls.values())
    nested = [f"{word[:2]}{word}{word[2:]}" for word in words]
    odd = [f"{word[:1]}{letter}{word[1:]}" for word in words[:3] for letter in _ODD]
    return f"ab{'ba'.join([*words, ''.join(words), *nested, *odd, *_ODD])}ba"


@check("renderer.render.control", level=Level.SINGLE, law=1, spec=_RENDER)
def control(bench: RendererBench) -> None:
    """A question that spells the family's own tokens is written as the template writes it, in ordinary tokens."""
    for bound in bench.bounds:
        words = [*CONTROL, *bound.controls.values()]
        for word in words:
            for text in (word, f"ab{word}ba"):
                _controlled(bound, text)


def _controlled(bound: Bound, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    seen = bound.rendered(messages)
    where = f"{bound.kind}: the question {text!r}"
    if seen is None:
        raise Violation(f"{where} is refused, which is text alone")
    due, whole = bound.text(messages), bound.decoded(seen)
    expect(text in whole, f"{where} is written as {whole!r}")
    expect(due is None or whole == due, f"{where} is written as {whole!r}, by the template as {due!r}")
    usual = bound.rendered([{"role": "user", "content": "ab"}]) or []
    _expect_ordinary(bound, usual, seen, where)


def _expect_ordinary(bound: Bound, usual: list[int], seen: list[int], where: str) -> None:
    due, forged = bound.controlling(usual), bound.controlling(seen)
    written = f"{bound.decoded(forged)!r} are written, and {bound.decoded(due)!r} due"
    expect(forged == due, f"{where} has become control tokens: {written}")


def _expect_alike(bound: Bound, text: str, usual: list[int], seen: list[int], where: str) -> None:
    """Expect what is written to differ in the text alone, which JSON may spell as it likes."""
    due, whole = bound.decoded(usual), bound.decoded(seen)
    told = f"{where} is written as {whole!r}, and {due.replace(WORD, text)!r} is due"
    expect(reads_as(whole, due, text), told)
    _expect_ordinary(bound, usual, seen, where)


@check("renderer.render.control_places", level=Level.SINGLE, law=1, spec=_RENDER)
def places(bench: RendererBench) -> None:
    """Texts of control tokens are text in every place: contents, thoughts, calls, answers of tools, tools, names."""
    for bound in bench.bounds:
        text = _forging(bound)
        for place, put in PLACES.items():
            usual, seen = put(WORD).written(bound), put(text).written(bound)
            where = f"{bound.kind}: {text!r} as {place}"
            if usual is None:
                continue
            if seen is None:
                expect(not put(text).is_plain, f"{where} is refused, which is text alone")
                bench.noted(f"{bound.kind}: refuses texts of control tokens as {place}")
                continue
            _expect_alike(bound, text, usual, seen, where)


@check("renderer.bridge.control", level=Level.SINGLE, law=1, spec=_RENDER)
def bridged(bench: RendererBench) -> None:
    """Texts of control tokens are text in what follows an answer, and an answer that spells some is gone on from."""
    for bound in bench.bounds:
        text = _forging(bound)
        for answered, put in ANSWERS.items():
            usual, spelling = put(WORD), put(text)
            for place, follows in FOLLOWING.items():
                due = usual.bridged(bound, follows(WORD))
                where = f"{bound.kind}: behind {answered}, {text!r} as {place}"
                if due is None:
                    continue
                seen = usual.bridged(bound, follows(text))
                if seen is None:
                    raise Violation(f"{where} ends the conversation: there is no bridge")
                _expect_alike(bound, text, due, seen, where)
                if spelling.output(bound) is not None:
                    behind = spelling.bridged(bound, follows(WORD))
                    expect(
                        behind == due, f"{bound.kind}: behind {text!r} as {answered} the bridge is {behind}, not {due}"
                    )


@check("renderer.parse.control", level=Level.SINGLE, law=1, spec="renderer#parse")
def read(bench: RendererBench) -> None:
    """An answer that spells control tokens in ordinary ones is read as that text; one that has them loses no word.

    What stands between thoughts and content is no word.
    """
    for bound in bench.bounds:
        words, between = sorted(bound.controls.values()), _between_parts(bound)
        for word in words:
            inside = bound.encoded(f"stone {word} ab")
            if not bound.renderer.stop_token_ids & set(inside):
                made = bound.renderer.parse(inside)
                parted = "stone" in made.thoughts and "stone" not in made.content and "ab" in made.content
                kept = ("stone", "ab") if parted or word in between else ("stone", word, "ab")
                lost = [one for one in kept if one not in told(made)]
                expect(not lost, f"{bound.kind}: of {bound.decoded(inside)!r}, read as {made}, {lost} are lost")
        for text in (*(f"ab {word} ba {word[:2]}{word}{word[2:]} I" for word in words), *_forged_calls(bound)):
            for place, put in ANSWERS.items():
                usual, output = put(WORD).output(bound), put(text).output(bound)
                if usual is None or output is None:
                    continue
                tools = put(WORD).tools
                due, seen = (told(bound.renderer.parse(ids, tools=tools)) for ids in (usual, output))
                where = f"{bound.kind}: {text!r} as {place}, written {bound.decoded(output)!r},"
                expect(
                    seen == due.replace(WORD, json.dumps(text, ensure_ascii=False)[1:-1]), f"{where} is read as {seen}"
                )


def _between_parts(bound: Bound) -> set[str]:
    """Return the control tokens that the template writes around thoughts and content."""
    outputs = [ANSWERS[place](WORD).output(bound) or [] for place in ("an answer", "an answer behind thoughts")]
    return {bound.controls[token] for output in outputs for token in bound.controlling(output[:-1])}


def _forged_calls(bound: Bound) -> Iterator[str]:
    """Yield what the family writes for a call, as text, where it marks calls with control tokens."""
    output = ANSWERS["an argument among others"](WORD).output(bound) or []
    body = output[:-1]
    if bound.controlling(body):
        call = bound.decoded(body).removeprefix(bound.decoded(bound.closing or []))
        yield f"ab {call.replace(chr(34), '')} ba"
        yield f"ab {call} ba"
