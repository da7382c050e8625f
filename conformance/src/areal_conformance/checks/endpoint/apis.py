"""One conversation in the words of every API: what is asked depends on what is said, not on how an API writes it.

Knows: a system, parts of text, calls and what tools answered, as each API has them.
Does not know: how an endpoint reads them, or their tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from areal_conformance.benches.endpoint import EndpointBench, said, text_of
from areal_conformance.benches.endpoint_forms import CHAT, MESSAGES, RESPONSES, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_SYSTEM, _QUESTION, _ANSWER, _LAST = "be ab", "stone?", "abba", "well?"
_CALLS: tuple[tuple[str, str, Json], ...] = (
    ("call_1", "add", {"word": "caf\u00e9", "number": 1}),
    ("call_2", "look", {}),
)
_RESULTS = {"call_1": "3 ab", "call_2": "ba er"}


@check("endpoint.tokens.every_api", level=Level.SINGLE, law=1, spec="endpoint#tokens")
async def every_api(bench: EndpointBench) -> None:
    """A conversation with a system, calls and what tools answered is asked in the same tokens in every API."""
    asked: dict[str, tuple[int, ...]] = {}
    for name, form, body in _bodies():
        async with bench.opened(form) as opened:
            said(form, await opened.agent.post(form.path, form.body((), **body)), name)
            asked[name] = opened.session.asked[0].input_ids
    first, *others = asked
    text = text_of(asked[first])
    words = (_SYSTEM, _QUESTION, _ANSWER, *(call[1] for call in _CALLS), *_RESULTS.values(), _LAST)
    missing = [word for word in words if word not in text]
    expect(not missing, f"{first}: {missing} are not in what the policy is asked: {text!r}")
    for name in others:
        told = f"{first} the policy is asked {text!r}, {name} {text_of(asked[name])!r}"
        expect(asked[name] == asked[first], told)


def _bodies() -> Iterator[tuple[str, Form, Json]]:
    """Yield the conversation as each API has it, in texts and in parts."""
    for parts in (False, True):
        how = "in parts" if parts else "in texts"
        yield f"as a chat {how}", CHAT, {CHAT.history: _chat(parts=parts), "tools": _tools(CHAT)}
        system = {} if parts else {"instructions": _SYSTEM}
        yield (
            f"as a response {how}",
            RESPONSES,
            {RESPONSES.history: _items(parts=parts), "tools": _tools(RESPONSES), **system},
        )
        told = [{"type": "text", "text": _SYSTEM}] if parts else _SYSTEM
        yield (
            f"as messages {how}",
            MESSAGES,
            {MESSAGES.history: _blocks(parts=parts), "tools": _tools(MESSAGES), "system": told},
        )


def _tools(form: Form) -> list[Json]:
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
    return [form.tool({"name": name, "description": f"To {name}.", "parameters": parameters}) for _, name, _ in _CALLS]


def _chat(*, parts: bool) -> list[Json]:
    halves = [{"type": "text", "text": text} for text in (_QUESTION[:3], _QUESTION[3:])]
    functions = [(call, {"name": name, "arguments": json.dumps(given)}) for call, name, given in _CALLS]
    calls = [{"id": call, "type": "function", "function": function} for call, function in functions]
    return [
        {"role": "developer" if parts else "system", "content": _SYSTEM},
        {"role": "user", "content": halves if parts else _QUESTION},
        {**CHAT.said(_ANSWER), "tool_calls": calls},
        *(CHAT.result(call, text) for call, text in _RESULTS.items()),
        CHAT.asked(_LAST),
    ]


def _items(*, parts: bool) -> list[Json]:
    halves = [{"type": "input_text", "text": text} for text in (_QUESTION[:3], _QUESTION[3:])]
    answer = [{"type": "output_text", "text": _ANSWER}] if parts else _ANSWER
    return [
        *([{"role": "developer", "content": _SYSTEM}] if parts else []),
        {"role": "user", "content": halves if parts else _QUESTION},
        {"type": "message", "role": "assistant", "content": answer},
        *(
            {"type": "function_call", "call_id": call, "name": name, "arguments": json.dumps(given)}
            for call, name, given in _CALLS
        ),
        *(RESPONSES.result(call, text) for call, text in _RESULTS.items()),
        RESPONSES.asked(_LAST),
    ]


def _blocks(*, parts: bool) -> list[Json]:
    question = [{"type": "text", "text": _QUESTION}] if parts else _QUESTION
    calls = [{"type": "tool_use", "id": call, "name": name, "input": given} for call, name, given in _CALLS]
    results = [block for call, text in _RESULTS.items() for block in MESSAGES.result(call, text)["content"]]
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}, *calls]},
        {"role": "user", "content": [*results, {"type": "text", "text": _LAST}]},
    ]
