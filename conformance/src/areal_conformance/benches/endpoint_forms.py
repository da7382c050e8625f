"""The forms in which agents ask: OpenAI's chat, responses and completions, Anthropic's messages; streamed or not.

    form.body([form.asked("how?")]), form.text(answer), form.echo(answer), form.text(form.whole(events))

Knows: fields of bodies and answers.
Does not know: events of streams (`endpoint_streams`), endpoints, keys or tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import frozen

from areal_conformance.benches.endpoint_streams import Json, whole_chat, whole_message, whole_response, whole_text

Call = tuple[str, str, Json]
"""A call of a tool: its id, the tool's name, the arguments."""


@frozen(kw_only=True)
class Form:
    """One API, as an agent's client speaks it. A history is a list in the form's own words."""

    name: str
    path: str
    """Behind the base URL of OpenAI's clients; Anthropic's is the same, as theirs ends before `/v1`."""
    history: str
    """The field that holds the conversation."""
    text: Callable[[Json], str]
    """Return what an answer says."""
    echo: Callable[[Json], list[Json]]
    """Return an answer as it stands in the history of the next request."""
    reason: Callable[[Json], str]
    """Return why an answer ended, in the words of `reasons`."""
    reasons: Mapping[str, str]
    """What `stop`, `length` and `calls` are called."""
    usage: Callable[[Json], tuple[int, int]]
    """Return how many tokens the prompt and the answer are said to have."""
    whole: Callable[[Sequence[Json]], Json]
    """Return the answer that the events of a stream make together."""
    ended: Callable[[Sequence[Json]], bool]
    """Tell whether a stream came to its end."""
    calls: Callable[[Json], list[Call]] = lambda answer: []
    thoughts: Callable[[Json], str | None] = lambda answer: None
    """Return the thoughts that are told apart; None where the API has no place for them and none are told."""
    thinks: Mapping[str, Any] = MappingProxyType({})  # Any: JSON
    """Fields of a request that wants thoughts told."""
    tool: Callable[[Json], Json] = lambda function: {"type": "function", "function": function}
    """Return a function with its name, description and parameters as a tool."""
    result: Callable[[str, Any], Json] = lambda call, text: {"role": "tool", "tool_call_id": call, "content": text}
    """Return what a tool answered to the call of an id, a text or its parts, as it stands in the history."""
    always: Mapping[str, Any] = MappingProxyType({})  # Any: JSON
    """Fields that the API demands."""
    key_header: str = "authorization"
    limit: str = "max_tokens"
    stops: str = "stop"
    """The field of texts that end an answer; empty where the API has none."""

    def question(self, text: str) -> Any:
        """Return a history of one question. Any: a list of messages, or a text."""
        return text if self.history == "prompt" else [self.asked(text)]

    def body(self, history: Any, **more: Any) -> Json:
        """Return a request. Any: messages, or a text; further fields."""
        given = history if isinstance(history, str) else list(history)
        return {"model": "policy", **self.always, self.history: given, **more}

    def asked(self, text: str) -> Json:
        """Return a message of the user."""
        return {"role": "user", "content": text}

    def said(self, content: str | Sequence[Json]) -> Json:
        """Return an answer that somebody wrote, or that came in pieces; a text, or its parts."""
        return {"role": "assistant", "content": content if isinstance(content, str) else list(content)}

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry a key as clients of this API do."""
        return {"x-api-key": key} if self.key_header == "x-api-key" else {"authorization": f"Bearer {key}"}


def _chat_message(answer: Json) -> Json:
    message: Json = answer["choices"][0]["message"]
    return message


def _ended_with_done(told: Sequence[Json]) -> bool:
    return bool(told) and told[-1].get("done") == "[DONE]"


def _read(name: str, arguments: str, call: str) -> Call:
    return call, name, json.loads(arguments)


_OPENAI: Mapping[str, str] = MappingProxyType({"stop": "stop", "length": "length", "calls": "tool_calls"})

CHAT = Form(
    name="chat",
    path="/chat/completions",
    history="messages",
    text=lambda answer: _chat_message(answer)["content"] or "",
    echo=lambda answer: [_chat_message(answer)],
    reason=lambda answer: answer["choices"][0]["finish_reason"],
    reasons=_OPENAI,
    usage=lambda answer: (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]),
    whole=whole_chat,
    ended=_ended_with_done,
    calls=lambda answer: [
        _read(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in _chat_message(answer).get("tool_calls") or ()
    ],
    thoughts=lambda answer: _chat_message(answer).get("reasoning_content"),
)

RESPONSES = Form(
    name="responses",
    path="/responses",
    history="input",
    text=lambda answer: "".join(
        part["text"]
        for item in answer["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    ),
    echo=lambda answer: list(answer["output"]),
    reason=lambda answer: answer["status"],
    reasons=MappingProxyType({"stop": "completed", "length": "incomplete", "calls": "completed"}),
    usage=lambda answer: (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]),
    whole=whole_response,
    ended=lambda told: any(event.get("type") in ("response.completed", "response.incomplete") for event in told[-2:]),
    limit="max_output_tokens",
    stops="",
    calls=lambda answer: [
        _read(item["name"], item["arguments"], item["call_id"])
        for item in answer["output"]
        if item["type"] == "function_call"
    ],
    thoughts=lambda answer: "".join(
        part["text"]
        for item in answer["output"]
        if item["type"] == "reasoning"
        for part in item.get("content") or item.get("summary") or ()
    ),
    tool=lambda function: {"type": "function", **function},
    result=lambda call, text: {"type": "function_call_output", "call_id": call, "output": text},
)

MESSAGES = Form(
    name="messages",
    path="/messages",
    history="messages",
    text=lambda answer: "".join(block["text"] for block in answer["content"] if block["type"] == "text"),
    echo=lambda answer: [{"role": "assistant", "content": answer["content"]}],
    reason=lambda answer: answer["stop_reason"],
    reasons=MappingProxyType({"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}),
    usage=lambda answer: (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]),
    whole=whole_message,
    ended=lambda told: bool(told) and told[-1].get("type") == "message_stop",
    always=MappingProxyType({"max_tokens": 512}),
    key_header="x-api-key",
    stops="stop_sequences",
    calls=lambda answer: [
        (block["id"], block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"
    ],
    thoughts=lambda answer: "".join(block["thinking"] for block in answer["content"] if block["type"] == "thinking"),
    thinks=MappingProxyType({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}),
    tool=lambda function: {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    },
    result=lambda call, text: {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call, "content": text}],
    },
)

NEWER_LIMIT = "max_completion_tokens"
"""What clients of chats send in place of `max_tokens`, which OpenAI has deprecated."""
TEXT = Form(
    name="completions",
    path="/completions",
    history="prompt",
    text=lambda answer: answer["choices"][0]["text"],
    echo=lambda answer: [],
    reason=lambda answer: answer["choices"][0]["finish_reason"],
    reasons=_OPENAI,
    usage=lambda answer: (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]),
    whole=whole_text,
    ended=_ended_with_done,
)

DIALOGUES: Mapping[str, Form] = MappingProxyType({form.name: form for form in (CHAT, RESPONSES, MESSAGES)})
"""Forms that hold conversations."""
FORMS: Mapping[str, Form] = MappingProxyType({**DIALOGUES, TEXT.name: TEXT})
