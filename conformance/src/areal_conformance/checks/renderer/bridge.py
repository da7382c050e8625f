"""What stands between two answers: exact tokens go on, or a new trajectory begins; nothing drifts.

Knows: the law of bridges, and what may be None.
Does not know: how a family closes an answer.
"""

from __future__ import annotations

from random import Random
from typing import Any

from areal_conformance.benches.renderer import Bound, RendererBench, Turn, difference, spelled
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.errors import DatasetError

_BRIDGE = "renderer#bridge"


def _turns(bench: RendererBench, bound: Bound, seed: int, **more: Any) -> list[Turn]:
    return list(bound.turns(bench.talks(seed, 8, **more)))


def _lawful(bound: Bound, turn: Turn) -> bool:
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
        if not sum(_lawful(bound, turn) for turn in _turns(bench, bound, 11)):
            bench.noted(f"{bound.kind}: the template writes earlier answers otherwise: each turn of text begins anew")


@check("renderer.bridge.tools", level=Level.SINGLE, law=1, spec=_BRIDGE)
def tools(bench: RendererBench) -> None:
    """The law holds behind calls, before answers of tools, and where thoughts belong to the calls."""
    for bound in bench.bounds:
        turns = [*_turns(bench, bound, 12, tools=True), *_turns(bench, bound, 13, tools=True, thoughts=True)]
        for turn in turns:
            _lawful(bound, turn)


@check("renderer.bridge.thoughts", level=Level.SINGLE, law=1, spec=_BRIDGE)
def thoughts(bench: RendererBench) -> None:
    """Where the template leaves an answer's thoughts out there is no bridge, but with `keep_thoughts`."""
    for bound in bench.bounds:
        for turn in _turns(bench, bound, 14, thoughts=True):
            kept = bound.bridged(turn, keep_thoughts=True)
            if _lawful(bound, turn):
                told = f"{bound.kind}: `keep_thoughts` changes a bridge over which no thoughts are left out"
                expect(kept == bound.bridged(turn), told)
                continue
            whole = bound.rendered(turn.whole, turn.asked.tools) or []
            if kept is None:
                said = bound.decoded(turn.output_ids)
                raise Violation(f"{bound.kind}: with `keep_thoughts` too there is no bridge behind {said!r}")
            told = f"{bound.kind}: with `keep_thoughts` the bridge is {bound.decoded(kept)!r}"
            expect(kept and whole[-len(kept) :] == kept, f"{told}, and the conversation ends with other tokens")
            content = str(turn.answer["content"])
            doubled = len(kept) >= len(whole) - len(turn.prompt_ids)
            expect(not doubled, f"{told}: it holds the answer {content!r} once more")


@check("renderer.bridge.closes", level=Level.SINGLE, law=1, spec=_BRIDGE)
def closes(bench: RendererBench) -> None:
    """An answer that was cut, or whose end token was left out, is closed by the bridge, and by nothing twice."""
    draw = Random(15)
    for bound in bench.bounds:
        for turn in _turns(bench, bound, 15):
            body, end = turn.output_ids[:-1], turn.output_ids[-1:]
            for cut in {len(body), draw.randint(0, len(body))}:
                closed, open_ = bound.bridged(turn, body[:cut] + end), bound.bridged(turn, body[:cut])
                if closed is None or open_ is None:
                    lost = closed is not None and cut == len(body)
                    expect(not lost, f"{bound.kind}: no bridge behind {bound.decoded(body)!r} without its end token")
                    continue
                told = f"{bound.kind}: behind {bound.decoded(body[:cut])!r}, which does not close itself, the bridge is"
                told = f"{told} {bound.decoded(open_)!r}, not {bound.decoded(end + closed)!r}"
                closing = open_[: len(open_) - len(end + closed)]
                expect(open_ == closing + end + closed, told)
                read = bound.renderer.parse(body[:cut], tools=turn.asked.tools)
                if closing:  # thoughts that were cut: what closes them is no word of the answer
                    added = bound.renderer.parse(body[:cut] + closing, tools=turn.asked.tools)
                    expect(not read.content and added == read, told)


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
    """A message of the assistant behind an answer is refused with a DatasetError: answers come from the engine."""
    for bound in bench.bounds:
        turn = bound.unanswered(bench.talks(20))
        output = bound.encoded("stone ab")
        forged = [{"role": "assistant", "content": "ab"}, {"role": "user", "content": "ba"}]
        try:
            seen = bound.renderer.bridge(list(turn.asked.messages), output, forged)
        except DatasetError as error:
            expect(error.what and (error.why or error.fix), f"{bound.kind}: it is refused without a reason: {error!r}")
        except Exception as error:
            told = f"{bound.kind}: a message of the assistant behind an answer: DatasetError was due, not {error!r}"
            raise Violation(told) from error
        else:
            raise Violation(f"{bound.kind}: a message of the assistant behind an answer is bridged with {seen}")


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
