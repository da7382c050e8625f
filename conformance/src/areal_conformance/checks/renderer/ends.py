"""However an answer ends, and whatever follows it: what the template writes stands there, or there is no bridge.

Knows: the stop tokens of a renderer, and what comes behind answers.
Does not know: which of them a family writes where.
"""

from __future__ import annotations

from areal_conformance.benches.conversations import Json, Talk
from areal_conformance.benches.renderer import Bound, RendererBench, Turn
from areal_conformance.check import Level, check
from areal_conformance.checks.renderer.bridge import lawful
from areal_conformance.outcome import expect

_BRIDGE = "renderer#bridge"


@check("renderer.bridge.ends", level=Level.SINGLE, law=1, spec=_BRIDGE)
def ends(bench: RendererBench) -> None:
    """Behind a stop token that the template does not write there is no bridge, whether thoughts are kept or not."""
    for bound in [*bench.bounds, *bench.ended_otherwise()]:
        turns = [one for more in _KINDS for one in bound.turns(bench.talks(27, 4, **more))]
        renames = any(_written_otherwise(bound, turn) for turn in turns)
        for turn in turns:
            for stop in sorted(bound.renderer.stop_token_ids - {turn.output_ids[-1]}):
                output = [*turn.output_ids[:-1], stop]
                seen, kept = bound.bridged(turn, output), bound.bridged(turn, output, keep_thoughts=True)
                due = bound.decoded(turn.output_ids[-1:])
                where = f"{bound.kind}: behind {bound.decoded(output)!r}, where {due!r} is written,"
                expect(seen is None, f"{where} there is a bridge")
                expect(kept is None or renames, f"{where} there is a bridge with `keep_thoughts`")


_KINDS: tuple[dict[str, bool], ...] = ({}, {"tools": True}, {"thoughts": True}, {"tools": True, "thoughts": True})


def _written_otherwise(bound: Bound, turn: Turn) -> bool:
    """Tell whether the token that ends an answer is another one in a history."""
    whole = bound.rendered(turn.whole, turn.asked.tools)
    return whole is not None and turn.output_ids[-1] not in whole


def _said(role: str, content: str, **more: str) -> Json:
    return {"role": role, "content": content, **more}


_ASKED, _SYSTEM = _said("user", "stone"), _said("system", "ab")
_TEXTS = (_said("assistant", "ba"), _said("assistant", "ba", reasoning_content="er 42"))
_FOLLOWS: tuple[list[Json], ...] = (
    [], [_ASKED], [_ASKED, _ASKED], [_SYSTEM, _ASKED], [_ASKED, _SYSTEM], [_SYSTEM], [_said("user", ""), _ASKED],
)  # fmt: skip
_CALL = {"id": "call_0", "type": "function", "function": {"name": "zeta", "arguments": {"z": 1}}}
_TOOL = {
    "type": "function",
    "function": {"name": "zeta", "description": "To ask.", "parameters": {"type": "object", "properties": {}}},
}
_CALLING = (
    {**_said("assistant", ""), "tool_calls": [_CALL]},
    {**_said("assistant", "", reasoning_content="er 42"), "tool_calls": [_CALL]},
)
_ANSWERED = _said("tool", "er", tool_call_id="call_0")
_FOLLOWS_CALLS: tuple[list[Json], ...] = (
    [_ANSWERED], [_ANSWERED, _ASKED], [_ANSWERED, _SYSTEM], [_ANSWERED, _ASKED, _ASKED], [_ASKED], [],
)  # fmt: skip


@check("renderer.bridge.follows", level=Level.SINGLE, law=1, spec=_BRIDGE)
def follows(bench: RendererBench) -> None:
    """The law holds whatever follows an answer: nothing, several questions, the system, a question behind a tool."""
    for bound in bench.bounds:
        talks = [Talk(messages=[_ASKED, answer, *then]) for answer in _TEXTS for then in _FOLLOWS]
        talks += [Talk(messages=[_ASKED, asked, *then], tools=[_TOOL]) for asked in _CALLING for then in _FOLLOWS_CALLS]
        for turn in bound.turns(iter(talks), ended=False):
            if bound.rendered(turn.whole, turn.asked.tools) is not None:
                lawful(bound, turn)
