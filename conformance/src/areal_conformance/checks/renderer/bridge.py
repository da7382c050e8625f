"""What stands between two answers: exact tokens go on, or a new trajectory begins; nothing drifts.

Knows: the law of bridges, and what may be None.
Does not know: how a family closes an answer.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

from areal_agentic.renderer import Answer
from areal_conformance.benches.conversations import Json
from areal_conformance.benches.renderer import Bound, RendererBench, Turn, difference, spelled
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.errors import DatasetError

_BRIDGE = "renderer#bridge"


def _turns(bench: RendererBench, bound: Bound, seed: int, **more: Any) -> list[Turn]:
    return list(bound.turns(bench.talks(seed, 8, **more)))


def lawful(bound: Bound, turn: Turn) -> bool:
    """Expect the law of an answer that the template wrote; False where the conversation has to begin anew."""
    due, seen = bound.goes_on(turn), bound.bridged(turn)
    where = f"behind {bound.decoded(turn.output_ids)!r}, before {list(turn.then)}"
    if due is None:
        told = f"{bound.kind}: the template writes the conversation otherwise now, and there is a bridge {where}"
        expect(seen is None, told)
        return False
    if seen is None:
        raise Violation(f"{bound.kind}: there is no bridge {where}, and the template goes on from those tokens")
    if seen != due:
        raise Violation(f"{bound.kind}: {difference(bound, due, seen)}, {where}")
    return True


@check("renderer.bridge.law", level=Level.SINGLE, law=1, spec=_BRIDGE)
def law(bench: RendererBench) -> None:
    """Prompt, output and bridge together are the tokens of the whole conversation, written at once."""
    for bound in bench.bounds:
        if not sum(lawful(bound, turn) for turn in _turns(bench, bound, 11)):
            bench.noted(f"{bound.kind}: the template writes earlier answers otherwise: each turn of text begins anew")


@check("renderer.bridge.tools", level=Level.SINGLE, law=1, spec=_BRIDGE)
def tools(bench: RendererBench) -> None:
    """The law holds behind calls, before answers of tools, and where thoughts belong to the calls."""
    for bound in bench.bounds:
        turns = [*_turns(bench, bound, 12, tools=True), *_turns(bench, bound, 13, tools=True, thoughts=True)]
        for turn in turns:
            lawful(bound, turn)


@check("renderer.bridge.thoughts", level=Level.SINGLE, law=1, spec=_BRIDGE)
def thoughts(bench: RendererBench) -> None:
    """Where the template leaves an answer's thoughts out there is no bridge, but with `keep_thoughts`."""
    for bound in bench.bounds:
        for turn in _turns(bench, bound, 14, thoughts=True):
            kept = bound.bridged(turn, keep_thoughts=True)
            if lawful(bound, turn):
                told = f"{bound.kind}: `keep_thoughts` changes a bridge over which no thoughts are left out"
                expect(kept == bound.bridged(turn), told)
                continue
            _left_out(bound, turn)
            whole = bound.rendered(turn.whole, turn.asked.tools) or []
            if kept is None:
                said = bound.decoded(turn.output_ids)
                raise Violation(f"{bound.kind}: with `keep_thoughts` too there is no bridge behind {said!r}")
            told = f"{bound.kind}: with `keep_thoughts` the bridge is {bound.decoded(kept)!r}"
            expect(kept and whole[-len(kept) :] == kept, f"{told}, and the conversation ends with other tokens")
            content = str(turn.answer["content"])
            doubled = len(kept) >= _behind_prompt(bound, turn, whole)
            expect(not doubled, f"{told}: it holds the answer {content!r} once more")


def _left_out(bound: Bound, turn: Turn) -> None:
    """Expect no bridge behind thoughts that are left out when they were written in other spacing, either."""
    body, end = turn.output_ids[:-1], turn.output_ids[-1:]
    said = bound.renderer.parse(turn.output_ids)
    for space in ("", " ", "\n"):
        spaced = bound.encoded(re.sub(r"\n+", space, bound.decoded(body)))
        read = bound.renderer.parse(spaced + end)
        if said.thoughts and (read.thoughts.strip(), read.content.strip()) == (said.thoughts, said.content):
            seen = bound.bridged(turn, spaced + end)
            where = f"{bound.kind}: behind {bound.decoded(spaced)!r}, whose thoughts are left out,"
            expect(seen is None, f"{where} there is a bridge")


def _behind_prompt(bound: Bound, turn: Turn, whole: list[int]) -> int:
    """Return how many tokens of a conversation stand behind what was asked, the answer among them.

    Where the prompt is written otherwise later, as one that opens thoughts, what opens the answer is among them, too.
    """
    if whole[: len(turn.prompt_ids)] == turn.prompt_ids:
        return len(whole) - len(turn.prompt_ids)
    asked = bound.rendered(turn.asked.messages, turn.asked.tools, ask=False) or []
    return len(whole) - len(asked) if whole[: len(asked)] == asked else len(whole)


@check("renderer.bridge.closes", level=Level.SINGLE, law=1, spec=_BRIDGE)
def closes(bench: RendererBench) -> None:
    """An answer that was cut, or whose end token was left out, is closed by the bridge, and by nothing twice."""
    draw = Random(15)
    for bound in bench.bounds:
        for turn in [*_turns(bench, bound, 15), *_turns(bench, bound, 29, thoughts=True)]:
            num_said = len(turn.output_ids) - 1
            for cut in {num_said, draw.randint(0, num_said)}:
                for keep_thoughts in (False, True):
                    _closed(bound, turn, cut, keep_thoughts)


def _closed(bound: Bound, turn: Turn, cut: int, keep_thoughts: bool) -> None:
    body, end = turn.output_ids[:cut], turn.output_ids[-1:]
    closed = bound.bridged(turn, body + end, keep_thoughts=keep_thoughts)
    open_ = bound.bridged(turn, body, keep_thoughts=keep_thoughts)
    if closed is None or open_ is None:
        lost = closed is not None and cut == len(turn.output_ids) - 1
        expect(not lost, f"{bound.kind}: no bridge behind {bound.decoded(body)!r} without its end token")
        return
    told = f"{bound.kind}: behind {bound.decoded(body)!r}, which does not close itself, the bridge is"
    told = f"{told} {bound.decoded(open_)!r}, not {bound.decoded(end + closed)!r}"
    place = len(open_) - len(closed) - 1
    ends = open_[place : place + 1]  # where thoughts are kept it may be the one that is written in a history
    expect(place >= 0 and open_[place + 1 :] == closed and (keep_thoughts or ends == end), told)
    read = bound.renderer.parse(body, tools=turn.asked.tools)
    behind = closed[0] if closed and closed[0] not in bound.controls else None
    if behind is not None and read == Answer(content=read.content):
        seen = bound.bridged(turn, [*body, behind], keep_thoughts=keep_thoughts)
        told_of = (
            f"{bound.kind}: behind {bound.decoded([*body, behind])!r}, which was cut at what stands behind an end,"
        )
        expect(seen in (None, open_), f"{told_of} the bridge is {bound.decoded(seen or [])!r}")
    if place:  # thoughts were cut: what closes them is no word
        added = bound.renderer.parse(body + open_[:place], tools=turn.asked.tools)
        expect(not read.content and added == read, told)
    if read.thoughts and not read.content and not read.calls:
        after = bound.renderer.parse([*body, *open_[:place], *bound.encoded("stone")], tools=turn.asked.tools)
        expect("stone" in after.content, f"{told}: the thoughts stay open")


@check("renderer.bridge.exact", level=Level.SINGLE, law=1, spec=_BRIDGE)
def exact(bench: RendererBench) -> None:
    """An answer in tokens that no tokenizer would choose goes on as its text does: nothing of it is encoded again."""
    tried = going = 0
    for bound in bench.bounds:
        for turn in [*_turns(bench, bound, 16), *_turns(bench, bound, 18, tools=True)]:
            body, end = turn.output_ids[:-1], turn.output_ids[-1:]
            odd = spelled(bound, bound.decoded(body))
            if bound.goes_on(turn) is None:
                continue
            going += 1
            if odd == body:
                continue
            tried += 1
            due, seen = bound.bridged(turn), bound.bridged(turn, odd + end)
            told = f"{bound.kind}: behind {odd}, another spelling of {bound.decoded(body)!r}, the bridge is {seen}"
            expect(seen == due, f"{told}; behind the tokens of the text it is {due}")
    if going and not tried:
        raise Inconclusive("the tokenizers of the adapter write every text in one way: nothing can drift")


@check("renderer.bridge.spacing", level=Level.SINGLE, law=1, spec=_BRIDGE)
def spacing(bench: RendererBench) -> None:
    """A call in other spacing than the template's, read as the same call, goes on as that one does."""
    for bound in bench.bounds:
        for turn in _turns(bench, bound, 19, tools=True):
            body, end = turn.output_ids[:-1], turn.output_ids[-1:]
            tight = bound.encoded(bound.decoded(body).replace('": ', '":'))
            alike = bound.renderer.parse(tight + end, tools=turn.asked.tools)
            if tight == body or alike != bound.renderer.parse(turn.output_ids, tools=turn.asked.tools):
                continue
            due, seen = bound.bridged(turn), bound.bridged(turn, tight + end)
            told = f"{bound.kind}: behind {bound.decoded(tight)!r} the bridge is {seen}"
            expect(seen == due, f"{told}; behind the same call as the template spaces it it is {due}")


@check("renderer.bridge.refuses", level=Level.SINGLE, law=8, spec=_BRIDGE)
def refuses(bench: RendererBench) -> None:
    """A message of the assistant behind an answer is a DatasetError; what render refuses has no bridge."""
    for bound in bench.bounds:
        turn = bound.unanswered(bench.talks(20))
        told = f"{bound.kind}: a message of the assistant behind an answer"
        try:
            seen = _behind(bound, turn, {"role": "assistant", "content": "ab"})
        except DatasetError as error:
            expect(error.what and (error.why or error.fix), f"{told} is refused without a reason: {error!r}")
        except Exception as error:
            raise Violation(f"{told}: DatasetError was due, not {error!r}") from error
        else:
            raise Violation(f"{told} is bridged with {seen}")
        for stranger in _STRANGERS:
            told = f"{bound.kind}: {stranger} behind an answer"
            try:
                seen = _behind(bound, turn, stranger)
            except DatasetError:
                continue
            except Exception as error:
                raise Violation(f"{told}: None or DatasetError was due, not {error!r}") from error
            expect(seen is None, f"{told} is bridged with {seen}")


_STRANGERS: tuple[Json, ...] = (
    {"role": "oracle", "content": "ab"},
    {"role": "user", "content": 3},
    {"content": "ab"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
)


def _behind(bound: Bound, turn: Turn, message: Json) -> list[int] | None:
    output = bound.encoded("stone ab")
    return bound.renderer.bridge(list(turn.asked.messages), output, [message, {"role": "user", "content": "ba"}])


@check("renderer.bridge.never_drifts", level=Level.SINGLE, law=1, spec=_BRIDGE)
def never_drifts(bench: RendererBench) -> None:
    """Behind any tokens at all there is a bridge that asks the assistant as it is always asked, or None."""
    draw = Random(17)
    for bound in bench.bounds:
        turn = bound.unanswered(bench.talks(17))
        asked = _asked(bound, turn)
        for _ in range(40):
            ids = [draw.randrange(len(bound.tokenizer)) for _ in range(draw.randint(0, 12))]
            seen = bound.bridged(turn, ids)
            if seen is None:
                continue
            told = f"{bound.kind}: behind the tokens {ids} the bridge is {bound.decoded(seen)!r}"
            expect(
                not asked or seen[-len(asked) :] == asked, f"{told}, which does not end with {bound.decoded(asked)!r}"
            )


def _asked(bound: Bound, turn: Turn) -> list[int]:
    """Return the tokens that open an answer of the assistant."""
    messages = list(turn.asked.messages)
    silent = bound.renderer.render(messages, tools=turn.asked.tools, ask=False)
    return list(bound.renderer.render(messages, tools=turn.asked.tools))[len(silent) :]
