"""A renderer is a function: the same in, the same out, whatever was asked before; what it is given stays as it is.

Knows: what a caller relies on between calls.
Does not know: what is rendered.
"""

from __future__ import annotations

import copy
from typing import Any

from areal_conformance.benches.renderer import Bound, RendererBench, Turn
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_RENDER = "renderer#render"


def _made(bound: Bound, turn: Turn) -> list[Any]:  # Any: tokens, and an answer
    asked = turn.asked
    return [
        list(bound.renderer.render(list(asked.messages), tools=list(asked.tools))),
        bound.bridged(turn),
        bound.renderer.parse(turn.output_ids, tools=list(asked.tools)),
    ]


@check("renderer.pure.same", level=Level.SINGLE, law=1, spec=_RENDER)
def same(bench: RendererBench) -> None:
    """Asked again, in another order and by another instance, everything is as it was the first time."""
    for bound in bench.bounds:
        turns = [*bound.turns(bench.talks(31, 4, tools=True)), *bound.turns(bench.talks(32, 4, thoughts=True))]
        first = [_made(bound, turn) for turn in turns]
        again = [_made(bound, turn) for turn in reversed(turns)][::-1]
        other = bench.bind(bound.kind)
        fresh = [_made(other, turn) for turn in reversed(turns)][::-1]
        expect(first == again, f"{bound.kind}: the same conversations are written otherwise the second time")
        expect(first == fresh, f"{bound.kind}: another instance writes the same conversations otherwise")


@check("renderer.pure.inputs", level=Level.SINGLE, law=1, spec=_RENDER)
def inputs(bench: RendererBench) -> None:
    """What it is given it leaves as it was, and what it gave belongs to the caller: changing that changes nothing."""
    for bound in bench.bounds:
        for turn in bound.turns(bench.talks(33, 4, tools=True)):
            messages, tools = list(turn.asked.as_text()), list(turn.asked.tools)
            output, then = list(turn.output_ids), list(turn.then)
            before = copy.deepcopy((messages, tools, output, then))
            made = bound.renderer.render(messages, tools=tools)
            kept = list(made)
            if isinstance(made, list):
                made.append(0)
            bridge = bound.renderer.bridge(messages, output, then, tools=tools)
            bound.renderer.parse(output, tools=tools)
            told = f"{bound.kind}: what it was given has changed: {before} is {(messages, tools, output, then)} now"
            expect((messages, tools, output, then) == before, told)
            if isinstance(bridge, list):
                bridge.append(0)
            again = list(bound.renderer.render(messages, tools=tools))
            expect(again == kept, f"{bound.kind}: the caller's list is the renderer's own: it ends with {again[-3:]}")
