"""What a request of the second endpoint asks for, read field by field from four APIs.

Knows: the fields, and what is wrong with one.
Does not know: tokens, sessions, HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

Json = dict[str, Any]  # Any: JSON
MOST = 16
"""Answers to one prompt."""


class Refused(Exception):
    """What is wrong with a request, and the status that says so."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@frozen(kw_only=True)
class Wanted:
    """One request, in whatever form it came. `prompt` is text or ids of one without messages."""

    messages: tuple[Json, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[Json, ...] = ()
    n: int = 1
    limit: int | None = None
    stops: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    stream: bool = False
    logprobs: bool = False
    """Whether more than the text is to be told; of `/messages`, thoughts."""
    previous: str = ""
    """The response that it goes on from."""
    instructions: int = 0
    """Messages at the beginning that are of this request alone."""


def need(condition: object, why: str) -> None:
    """Refuse a request unless the condition is true."""
    if not condition:
        raise Refused(why)


def _number(body: Json, name: str, least: int, most: int = 10**9) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    need(isinstance(value, int) and not isinstance(value, bool), f"{name} is no whole number")
    need(least <= value <= most, f"{name} is {value}, not from {least} to {most}")
    return int(value)


def _text(value: object, where: str) -> str:
    need(isinstance(value, str), f"{where} is a {type(value).__name__}, no text")
    text = str(value)
    need(text.isprintable() or text.encode(errors="replace").decode() == text, f"{where} is no Unicode")
    return text


def _parts(value: object, where: str, *types: str) -> str:
    """Return the text of a content: a text, or parts of it."""
    if not isinstance(value, list):
        return _text(value, where)
    texts = []
    for part in value:
        need(isinstance(part, Mapping) and part.get("type") in types, f"{where} has parts that are no text")
        texts.append(_text(part.get("text"), where))
    return "".join(texts)


def _stops(body: Json, name: str) -> tuple[str, ...]:
    value = body.get(name)
    given = [value] if isinstance(value, str) else value if value is not None else []
    need(isinstance(given, list), f"{name} is no text and no list of texts")
    return tuple(_text(one, name) for one in given)


def _flag(body: Json, name: str) -> bool:
    value = body.get(name)
    need(value is None or isinstance(value, bool), f"{name} is neither true nor false")
    return bool(value)


def _listed(value: object, where: str) -> list[Json]:
    need(isinstance(value, list), f"{where} is no list")
    assert isinstance(value, list)
    need(all(isinstance(one, dict) for one in value), f"{where} holds what is no object")
    return value


def _tools(body: Json, unwrap: Callable[[Json], Json]) -> tuple[Json, ...]:
    choice, made = body.get("tool_choice"), []
    kind = choice.get("type") if isinstance(choice, dict) else choice
    need(kind in (None, "auto"), f"tool_choice {kind!r} is not offered here")
    for one in _listed(body.get("tools") or [], "tools"):
        function = unwrap(one)
        need(isinstance(function, dict), "a tool has no function")
        _text(function.get("name"), "the name of a tool")
        made.append({"type": "function", "function": function})
    return tuple(made)


def _call(call_id: object, name: object, arguments: object) -> Json:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        told = json.loads(_text(text, "the arguments of a call"))
    except ValueError as error:
        raise Refused(f"the arguments of a call are no JSON: {error}") from error
    need(isinstance(told, dict), "the arguments of a call are no object")
    function = {"name": _text(name, "the name of a call"), "arguments": json.dumps(told, ensure_ascii=False)}
    return {"id": _text(call_id, "the id of a call"), "type": "function", "function": function}


def _chat_message(one: Json) -> Json:
    role = one.get("role")
    need(role in ("system", "developer", "user", "assistant", "tool"), f"there is no role {role!r}")
    calls = _listed(one.get("tool_calls") or [], "tool_calls")
    content = one.get("content")
    if content is None:
        need(role == "assistant" and calls, "a message has no content")
        content = ""
    made: Json = {
        "role": "system" if role == "developer" else role,
        "content": _parts(content, "a content", "text"),
    }
    if calls:
        need(all(isinstance(call.get("function"), dict) for call in calls), "a call has no function")
        made["tool_calls"] = [
            _call(call.get("id"), call["function"].get("name"), call["function"].get("arguments")) for call in calls
        ]
    if role == "tool":
        made["tool_call_id"] = _text(one.get("tool_call_id"), "tool_call_id")
    return {**made, **_thought(one.get("reasoning_content") or "" if role == "assistant" else "")}


def _thought(value: object) -> Json:
    """Return thoughts as a history has them."""
    return {"reasoning_content": _text(value, "a thought")} if value else {}


def _absent(body: Json, *names: str) -> None:
    for name in names:
        need(not body.get(name), f"{name} is not offered here")


def chat(body: Json) -> Wanted:
    """Read a body of `/chat/completions`."""
    _absent(body, "response_format", "functions", "function_call", "top_logprobs")
    limit = _number(body, "max_completion_tokens", 1)
    return Wanted(
        messages=_asking(tuple(map(_chat_message, _listed(body.get("messages"), "messages")))),
        tools=_tools(body, lambda one: one.get("function", {})),
        n=_number(body, "n", 1, MOST) or 1,
        limit=_number(body, "max_tokens", 1) if limit is None else limit,
        stops=_stops(body, "stop"),
        stream=_flag(body, "stream"),
        logprobs=_flag(body, "logprobs"),
    )


def completions(body: Json) -> Wanted:
    """Read a body of `/completions`."""
    _absent(body, "echo", "suffix", "best_of")
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        need(prompt, "the prompt is empty")
        whole = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in prompt)
        need(whole, "the prompt is no list of token ids")
    else:
        need(_text(prompt, "prompt"), "the prompt is empty")
    return Wanted(
        prompt=tuple(prompt) if isinstance(prompt, list) else prompt,
        n=_number(body, "n", 1, MOST) or 1,
        limit=_number(body, "max_tokens", 1),
        stops=_stops(body, "stop"),
        stream=_flag(body, "stream"),
        logprobs=_number(body, "logprobs", 0) is not None,
    )


def _response_item(one: Json) -> Json:
    kind = one.get("type", "message")
    if kind == "function_call":
        call = _call(one.get("call_id"), one.get("name"), one.get("arguments"))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        said = {"role": "tool", "content": _parts(one.get("output"), "an output", "input_text")}
        return {**said, "tool_call_id": _text(one.get("call_id"), "call_id")}
    if kind == "reasoning":
        thoughts = _parts(one.get("content") or "", "a thought", "reasoning_text")
        return {"role": "assistant", "content": "", "open": True, **_thought(thoughts)}
    need(kind == "message", f"items of the type {kind!r} are not taken here")
    role = one.get("role")
    need(role in ("system", "developer", "user", "assistant"), f"there is no role {role!r}")
    content = _parts(one.get("content"), "a content", "input_text", "output_text", "text")
    return {"role": "system" if role == "developer" else role, "content": content}


def responses(body: Json) -> Wanted:
    """Read a body of `/responses`."""
    _absent(body, "text", "prompt", "conversation", "background")
    previous = body.get("previous_response_id")
    given = body.get("input")
    if isinstance(given, str):
        items = [{"role": "user", "content": _text(given, "input")}]
    else:
        items = _joined([_response_item(one) for one in _listed(given, "input")])
    system = body.get("instructions")
    first = [] if system is None else [{"role": "system", "content": _text(system, "instructions")}]
    return Wanted(
        messages=(*first, *_asking(tuple(items))),
        previous="" if previous is None else _text(previous, "previous_response_id"),
        instructions=len(first),
        tools=_tools(body, lambda one: {key: value for key, value in one.items() if key in _FUNCTION}),
        limit=_number(body, "max_output_tokens", 1),
        stream=_flag(body, "stream"),
        logprobs="message.output_text.logprobs" in (body.get("include") or ()),
    )


_FUNCTION = ("name", "description", "parameters")


def _joined(items: list[Json]) -> list[Json]:
    """Return items with calls put into the message of the assistant before them."""
    made: list[Json] = []
    for one in items:
        last = made[-1] if made else {}
        if one.get("tool_calls") and last.get("role") == "assistant":
            made[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), *one["tool_calls"]]}
        elif one["role"] == "assistant" and last.get("open"):
            made[-1] = {**last, **one, "open": False}
        else:
            made.append(one)
    return [{key: value for key, value in one.items() if key != "open"} for one in made]


def _blocks(one: Json) -> list[Json]:
    """Return the messages that a message of Anthropic's stands for."""
    role, content = one.get("role"), one.get("content")
    need(role in ("user", "assistant"), f"there is no role {role!r}")
    if isinstance(content, str):
        return [{"role": role, "content": _text(content, "a content")}]
    made, texts, calls, thoughts = list[Json](), list[str](), list[Json](), ""
    for block in _listed(content, "a content"):
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block.get("text"), "a text"))
        elif kind == "thinking" and role == "assistant":
            thoughts += _text(block.get("thinking"), "a thought")
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block.get("id"), block.get("name"), block.get("input")))
        elif kind == "tool_result" and role == "user":
            said = _parts(block.get("content") or "", "a result", "text")
            told = _text(block.get("tool_use_id"), "tool_use_id")
            made.append({"role": "tool", "content": said, "tool_call_id": told})
        else:
            raise Refused(f"blocks of the type {kind!r} are not taken here")
    if role == "assistant":
        need(texts or calls or thoughts, "a message has no content")
        answer: Json = {"role": role, "content": "".join(texts), **_thought(thoughts)}
        return [{**answer, **({"tool_calls": calls} if calls else {})}]
    need(texts or made, "a message has no content")
    return [*made, *([{"role": role, "content": "".join(texts)}] if texts else [])]


def messages(body: Json) -> Wanted:
    """Read a body of Anthropic's `/messages`."""
    limit = _number(body, "max_tokens", 1)
    need(limit is not None, "max_tokens is missing")
    system = body.get("system")
    first = [] if system is None else [{"role": "system", "content": _parts(system, "system", "text")}]
    said = [message for one in _listed(body.get("messages"), "messages") for message in _blocks(one)]
    return Wanted(
        messages=(*first, *_asking(tuple(said))),
        tools=_tools(body, _anthropic_tool),
        limit=limit,
        stops=_stops(body, "stop_sequences"),
        stream=_flag(body, "stream"),
        logprobs=isinstance(asked := body.get("thinking"), dict) and asked.get("type") != "disabled",
    )


def _anthropic_tool(one: Json) -> Json:
    need(one.get("type") in (None, "custom"), f"the tool {one.get('type')!r} is not here")
    described = {"description": one["description"]} if "description" in one else {}
    return {"name": one.get("name"), **described, "parameters": one.get("input_schema", {})}


def _asking(said: tuple[Json, ...]) -> tuple[Json, ...]:
    need(said, "the conversation is empty")
    need(said[-1]["role"] != "assistant", "an answer that was begun is not gone on with here")
    return said


READERS: Mapping[str, Callable[[Json], Wanted]] = {
    "chat/completions": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
}
"""Path behind `/v1/` -> how its bodies are read."""
