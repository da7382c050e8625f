"""One message said in several ways is one message: parts of text or text, nothing or an empty text, keys left out.

Or it is what the template makes of that way itself, as long as nothing does not become a word.

Knows: the ways in which clients of OpenAI's API write the same.
Does not know: how any of it becomes tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_conformance.benches.conversations import Json
from areal_conformance.benches.renderer import Bound, RendererBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import DatasetError

_TOOL: Json = {
    "type": "function",
    "function": {"name": "zeta", "description": "To ask.", "parameters": {"type": "object", "properties": {}}},
}
_ASKED: Json = {"role": "user", "content": "stone"}


def _parts(*texts: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


def _answered(asked: Json) -> list[Json]:
    return [_ASKED, asked, {"role": "tool", "content": "orbit", "tool_call_id": "call_0"}]


def _calling(arguments: object, **more: object) -> Json:
    call = {"id": "call_0", "type": "function", "function": {"name": "zeta", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **more}


_SAID = {"role": "assistant", "content": "ab"}
_ALIKE: Mapping[str, tuple[list[Json], list[list[Json]]]] = {
    "a question": (
        [{"role": "user", "content": "stone ab"}],
        [
            [{"role": "user", "content": _parts(*texts)}]
            for texts in (("stone ab",), ("sto", "ne ab"), ("", "stone ab"))
        ],
    ),
    "an empty question": (
        [{"role": "user", "content": ""}],
        [[{"role": "user", "content": content}] for content in (_parts(), _parts(""))],
    ),
    "a system message": (
        [{"role": "system", "content": "orbit ab"}, _ASKED],
        [[{"role": "system", "content": _parts("orbit", " ab")}, _ASKED]],
    ),
    "what a tool answers": (
        _answered(_calling({"z": 1}, content="")),
        [[*_answered(_calling({"z": 1}, content=""))[:2], {"role": "tool", "content": _parts("or", "bit")}]],
    ),
    "an answer": (
        [_ASKED, _SAID, _ASKED],
        [
            [_ASKED, {"role": "assistant", "content": _parts("a", "b")}, _ASKED],
            [_ASKED, {**_SAID, "tool_calls": []}, _ASKED],
            [_ASKED, {**_SAID, "tool_calls": None}, _ASKED],
            [_ASKED, {**_SAID, "reasoning_content": None}, _ASKED],
            [_ASKED, {**_SAID, "reasoning_content": ""}, _ASKED],
        ],
    ),
    "a call": (
        _answered(_calling({"z": 1, "a": "caf\u00e9"}, content="")),
        [
            _answered(_calling({"z": 1, "a": "caf\u00e9"}, content=None)),
            _answered(_calling({"z": 1, "a": "caf\u00e9"})),
            _answered(_calling({"z": 1, "a": "caf\u00e9"}, content=_parts())),
        ],
    ),
}
"""What is said -> a conversation that says it, and others that say the same."""
_WORDS = ("None", "null", "[]", "type")
"""What becomes of nothing and of parts where a template takes them for texts."""


@check("renderer.render.contents", level=Level.SINGLE, law=1, spec="renderer#render")
def contents(bench: RendererBench) -> None:
    """Parts, nothing and keys without a value are their plain spelling, or what the template writes for them."""
    for bound in bench.bounds:
        for what, (usual, others) in _ALIKE.items():
            for tools in ([], [_TOOL]):
                due = bound.rendered(usual, tools)
                for other in others if due is not None else ():
                    seen = bound.rendered(other, tools)
                    if seen is None:
                        bench.noted(f"{bound.kind}: {what} is written in one way only, and refused in others")
                        continue
                    told = f"{bound.kind}: {other[-1] if len(other) == 1 else other} is written {bound.decoded(seen)!r}"
                    words = [bound.decoded(ids) for ids in (due or [], seen)]
                    made = [word for word in _WORDS if words[1].count(word) > words[0].count(word)]
                    expect(not made, f"{told}: {made} stand for what nobody wrote")
                    as_plain = f"{told}, and the same as {usual} {words[0]!r}"
                    expect(seen in (due, bound.truth(other, tools)), as_plain)


_BROKEN: Mapping[str, Json] = {
    "half of JSON": _calling('{"number": 4271', content=""),
    "a list as JSON text": _calling("[4271]", content=""),
    "more lists in lists than Python reads": _calling(f'{{"number": {"[" * 9000}{"]" * 9000}}}', content=""),
    "a text as JSON text": _calling('"4271"', content=""),
}


@check("renderer.render.arguments", level=Level.SINGLE, law=8, spec="renderer#refuse")
def arguments(bench: RendererBench) -> None:
    """Arguments that are no JSON object are refused with a DatasetError, or written as they stand."""
    for bound in bench.bounds:
        for what, asked in _BROKEN.items():
            text = asked["tool_calls"][0]["function"]["arguments"]
            seen = _refused(bound, what, _answered(asked))
            expect(seen is None or text in seen, f"{bound.kind}: {what}, {text[:40]}, as arguments is written {seen!r}")


def _refused(bound: Bound, what: str, messages: list[Json]) -> str | None:
    """Return what is written; None if it is refused, and says why."""
    try:
        return bound.decoded(bound.renderer.render(messages, tools=[_TOOL]))
    except DatasetError as error:
        expect(
            error.what and (error.why or error.fix), f"{bound.kind}: {what} as arguments is refused without a reason"
        )
        return None
    except Exception as error:
        told = f"{bound.kind}: {what} as arguments: DatasetError was due, not {type(error).__name__}: {error}"
        raise Violation(told) from error
