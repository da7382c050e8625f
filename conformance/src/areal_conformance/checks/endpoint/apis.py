"""One conversation in the words of every API: what is asked depends on what is said, not on how an API writes it.

Knows: a system, parts of text, calls and what tools answered, as each API has them.
Does not know: how an endpoint reads them, or their tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from areal_conformance.benches.endpoint import EndpointBench, said, text_of
from areal_conformance.benches.endpoint_forms import CHAT, MESSAGES, RESPONSES, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_conformance.probes.tokenizers import tiny_tokenizer

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


@check("endpoint.tokens.answers_in_a_row", level=Level.SINGLE, law=1, spec="endpoint#tokens")
async def answers_in_a_row(bench: EndpointBench) -> None:
    """Two answers in a row are both asked, in the same tokens in every API; so are two blocks of a question."""
    asked: dict[str, str] = {}
    for form in (CHAT, RESPONSES, MESSAGES):
        async with bench.opened(form) as opened:
            history = [form.asked(_QUESTION), form.said(_ANSWER), form.said(_LAST), form.asked("and?")]
            said(form, await opened.agent.post(form.path, form.body(history)), form.name)
            asked[form.name] = text_of(opened.session.asked[0].input_ids)
    for name, text in asked.items():
        both = _LAST in text.partition(_ANSWER)[2]
        expect(both, f"{name}: {_ANSWER!r} and {_LAST!r} were answered; the policy is asked {text!r}")
    chat, response = asked[CHAT.name], asked[RESPONSES.name]
    expect(chat == response, f"{CHAT.name}: the policy is asked {chat!r}, {RESPONSES.name}: {response!r}")
    async with bench.opened(MESSAGES) as opened:
        blocks = [{"type": "text", "text": text} for text in (_QUESTION, _LAST)]
        body = MESSAGES.body([{"role": "user", "content": blocks}])
        said(MESSAGES, await opened.agent.post(MESSAGES.path, body), "a question in two blocks")
        text = text_of(opened.session.asked[0].input_ids)
    expect(_LAST in text.partition(_QUESTION)[2], f"{_QUESTION!r} and {_LAST!r} are two blocks; asked is {text!r}")


_THOUGHT = "abba is ab"


@check("endpoint.tokens.own_thoughts", level=Level.SINGLE, law=1, spec="endpoint#tokens")
async def own_thoughts(bench: EndpointBench) -> None:
    """Thoughts in a history that an agent wrote are asked in the same tokens in every API that has a place for them."""
    (call, name, given), *_ = _CALLS
    function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
    thinking, said_so = {"type": "thinking", "thinking": _THOUGHT, "signature": ""}, {"type": "text", "text": _ANSWER}
    reasoned = {"type": "reasoning", "id": "rs_1", "summary": []}
    calls = [{"id": call, "type": "function", "function": function}]
    answers: tuple[tuple[Form, list[Json]], ...] = (
        (CHAT, [{**CHAT.said(_ANSWER), "reasoning_content": _THOUGHT, "tool_calls": calls}]),
        (
            RESPONSES,
            [
                {**reasoned, "content": [{"type": "reasoning_text", "text": _THOUGHT}]},
                {"type": "message", **RESPONSES.said(_ANSWER)},
                {"type": "function_call", "call_id": call, **function},
            ],
        ),
        (
            MESSAGES,
            [MESSAGES.said([thinking, said_so, {"type": "tool_use", "id": call, "name": name, "input": given}])],
        ),
    )
    asked: dict[str, str] = {}
    for form, answer in answers:
        async with bench.opened(form, tokenizer=tiny_tokenizer("thinking")) as opened:
            history = [form.asked(_QUESTION), *answer, form.result(call, _LAST)]
            said(form, await opened.agent.post(form.path, form.body(history, tools=_tools(form))), form.name)
            asked[form.name] = text_of(opened.session.asked[0].input_ids)
    if _THOUGHT not in asked[CHAT.name]:
        del asked[CHAT.name]  # that API has no field for them that is its own
    due = asked[RESPONSES.name]
    expect(_THOUGHT in due, f"{RESPONSES.name}: the thoughts of an answer are not in what the policy is asked: {due!r}")
    for form_name, text in asked.items():
        expect(text == due, f"{RESPONSES.name}: the policy is asked {due!r}, {form_name}: {text!r}")


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
        custom = {"type": "custom"} if parts else {}
        yield (
            f"as messages {how}",
            MESSAGES,
            {MESSAGES.history: _blocks(parts=parts), "tools": _tools(MESSAGES, **custom), "system": told},
        )


def _tools(form: Form, **more: str) -> list[Json]:
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
    functions = [{"name": name, "description": f"To {name}.", "parameters": parameters} for _, name, _ in _CALLS]
    return [{**form.tool(function), **more} for function in functions]


def _halves(text: str, kind: str) -> list[Json]:
    return [{"type": kind, "text": half} for half in (text[:3], text[3:])]


def _chat(*, parts: bool) -> list[Json]:
    text: Callable[[str], Any] = (lambda whole: _halves(whole, "text")) if parts else str
    functions = [(call, {"name": name, "arguments": json.dumps(given)}) for call, name, given in _CALLS]
    calls = [{"id": call, "type": "function", "function": function} for call, function in functions]
    return [
        {"role": "developer" if parts else "system", "content": _SYSTEM},
        {"role": "user", "content": text(_QUESTION)},
        {"role": "assistant", "content": text(_ANSWER), "tool_calls": calls},
        *(CHAT.result(call, text(said)) for call, said in _RESULTS.items()),
        CHAT.asked(_LAST),
    ]


def _items(*, parts: bool) -> list[Json]:
    text: Callable[[str], Any] = (lambda whole: _halves(whole, "input_text")) if parts else str
    answer = _halves(_ANSWER, "output_text") if parts else _ANSWER
    return [
        *([{"role": "developer", "content": _SYSTEM}] if parts else []),
        {"role": "user", "content": text(_QUESTION)},
        {"type": "message", "role": "assistant", "content": answer},
        *(
            {"type": "function_call", "call_id": call, "name": name, "arguments": json.dumps(given)}
            for call, name, given in _CALLS
        ),
        *(RESPONSES.result(call, text(said)) for call, said in _RESULTS.items()),
        RESPONSES.asked(_LAST),
    ]


def _blocks(*, parts: bool) -> list[Json]:
    text: Callable[[str], Any] = (lambda whole: _halves(whole, "text")) if parts else str
    question = [{"type": "text", "text": _QUESTION}] if parts else _QUESTION
    answer = _halves(_ANSWER, "text") if parts else [{"type": "text", "text": _ANSWER}]
    calls = [{"type": "tool_use", "id": call, "name": name, "input": given} for call, name, given in _CALLS]
    results = [block for call, said in _RESULTS.items() for block in MESSAGES.result(call, text(said))["content"]]
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": [*answer, *calls]},
        {"role": "user", "content": [*results, {"type": "text", "text": _LAST}]},
    ]
