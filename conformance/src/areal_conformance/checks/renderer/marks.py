"""What marks thoughts and calls is only text elsewhere: in a content, in an argument, twice, unclosed, one in another.

The marks are found in what the template writes around thoughts and calls, so no family is known here. Where a template
treats a text with marks otherwise than any other, nothing is expected of it; nor where the form itself cannot tell:
what closes thoughts, inside of thoughts.

Knows: places where a mark is text, and how answers are cut.
Does not know: the marks of any family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from attrs import evolve

from areal_agentic.renderer import Answer
from areal_conformance.benches.conversations import Json
from areal_conformance.benches.renderer import Bound, RendererBench
from areal_conformance.benches.renderer_places import ANSWERS, WORD, Put, told
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_PARSE = "renderer#parse"
_THOUGHTS = ("<think>", "</think>")
_CALLS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "</arg_value>", "```", '{"name": "zeta", "arguments": {}}')
_MARK = re.compile(r"<[^<>\s]+>")


def _between(bound: Bound, place: str) -> tuple[str, ...]:
    """Return the marks that stand in an answer with a text in this place."""
    output = ANSWERS[place](WORD).output(bound) or []
    return tuple(_MARK.findall(bound.decoded(output[:-1])))


def _spoken(marks: Sequence[str]) -> Iterator[str]:
    """Yield texts that speak of marks: twice, one before another."""
    for one, other in zip(marks, [*marks[1:], *marks[:1]], strict=True):
        yield f"ab {one} 42 <b> {one} ba"
        yield f"ab {one} 42 <b> {other} ba"
        yield f"ab {other} 42 <b> {one} ba"


@check("renderer.parse.marks", level=Level.SINGLE, law=1, spec=_PARSE)
def marks(bench: RendererBench) -> None:
    """Marks of thoughts and calls that a content, thoughts or an argument speak of are text, and nothing is lost."""
    for bound in bench.bounds:
        thinking = tuple(dict.fromkeys((*_THOUGHTS, *_between(bound, "thoughts"))))
        calling = tuple(dict.fromkeys((*_CALLS, *_between(bound, "an argument"))))
        texts = (*_spoken(thinking), *_spoken(calling), *_spoken((*thinking[:2], *calling[:2])))
        for place, put in ANSWERS.items():
            usual = put(WORD).output(bound) or []
            for text in texts if usual else ():
                _speaking(bound, text, place, usual, put(text), calling if "argument" in place else thinking[1:])


def _speaking(bound: Bound, text: str, place: str, usual: list[int], put: Put, unclear: Sequence[str]) -> None:
    output = put.output(bound)
    if output is None:
        return
    due, seen = (told(bound.renderer.parse(ids, tools=put.tools)) for ids in (usual, output))
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    written = bound.decoded(output)
    where = f"{bound.kind}: {text!r} as {place}, written {written!r},"
    lost = [word for word in ("ab", "42", "ba") if word in text and word in written and word not in seen]
    expect(not lost, f"{where} is read as {seen}: {lost} are lost")
    plain = written == bound.decoded(usual).replace(WORD, text)
    if not plain and written != bound.decoded(usual).replace(WORD, quoted):
        return  # the template takes it for more than a text
    free = f'"{quoted}"' not in written and ("argument" in place or "thoughts" in place.split(" ")[:1])
    if not (free and any(mark in text for mark in unclear)):
        expect(seen == due.replace(WORD, quoted), f"{where} is read as {seen}")


_EDGES = ("  {}", "\t{}", "{}  ", "{}\n", "{}\n\n", "    {}\n        {}")


@check("renderer.parse.edges", level=Level.SINGLE, law=1, spec=_PARSE)
def edges(bench: RendererBench) -> None:
    """White space at the edges of a content, of thoughts and of an argument is read as the template writes it."""
    for bound in bench.bounds:
        for place, put in ANSWERS.items():
            usual = put(WORD).output(bound) or []
            if place == "an answer beside a call":  # what stands between the two is the form's
                continue
            for edge in _EDGES if usual else ():
                text = edge.format(WORD, "ab")
                _speaking(bound, text, place, usual, put(text), [])


@check("renderer.parse.cut", level=Level.SINGLE, law=5, spec=_PARSE)
def cut(bench: RendererBench) -> None:
    """Of an answer that was cut anywhere nothing is lost: thoughts that stay open are thoughts, half a call is text."""
    for bound in bench.bounds:
        for place, put in (*ANSWERS.items(), ("two calls", _two_calls)):
            output = put(f"{WORD} ab").output(bound) or []
            whole, written = bound.renderer.parse(output, tools=put(WORD).tools), bound.decoded(output)
            begin = written.find(whole.thoughts) if whole.thoughts else len(written)
            for end in range(1, len(output)):
                is_open = 0 <= begin < len(bound.decoded(output[:end])) <= begin + len(whole.thoughts)
                _cut(bound, place, output[:end], whole, begin if is_open else None, put(WORD).tools)


def _two_calls(text: str) -> Put:
    made = ANSWERS["an argument"](text)
    asked, answer = made.messages
    [call] = answer["tool_calls"]
    other = {**call, "id": "call_1", "function": {"name": "zeta", "arguments": {"a": "quartz"}}}
    return evolve(made, messages=[asked, {**answer, "tool_calls": [call, other]}])


def _cut(bound: Bound, place: str, output: list[int], whole: Answer, begin: int | None, tools: Sequence[Json]) -> None:
    text = bound.decoded(output)
    seen = bound.renderer.parse(output, tools=tools)
    where = f"{bound.kind}: {text!r}, {place} that was cut, is read as {seen}"
    said = [seen.content, seen.thoughts, *(f"{call.name} {call.arguments}" for call in seen.calls)]
    lost = [word for word in (WORD, "orbit", "quartz", "zeta") if word in text and word not in " ".join(said)]
    expect(not lost, f"{where}: {lost} are lost")
    expect(seen.calls == whole.calls[: len(seen.calls)], f"{where}: a call of it is another than in the whole")
    if begin is not None and (begun := text[begin:].strip()):
        due = not seen.content and not seen.calls and seen.thoughts.strip() == begun
        expect(due, f"{where}: its thoughts are {begun!r} so far, and it has no content")
