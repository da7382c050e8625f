"""The forms in which agents ask: OpenAI's chat, responses and completions, Anthropic's messages; streamed or not.

    form.body([form.asked("how?")]), form.text(answer), form.echo(answer)

Knows: fields of bodies and answers, and server-sent events.
Does not know: endpoints, keys or tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import frozen

Json = dict[str, Any]  # Any: JSON


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
    streamed: Callable[[Sequence[Json]], str]
    """Return what the events of a stream say together."""
    ended: Callable[[Sequence[Json]], bool]
    """Tell whether a stream came to its end."""
    always: Mapping[str, Any] = MappingProxyType({})  # Any: JSON
    """Fields that the API demands."""
    key_header: str = "authorization"
    limit: str = "max_tokens"

    def body(self, history: Sequence[Json], **more: Any) -> Json:
        """Return a request. Any: further fields."""
        return {"model": "policy", **self.always, self.history: list(history), **more}

    def asked(self, text: str) -> Json:
        """Return a message of the user."""
        return {"role": "user", "content": text}

    def said(self, text: str) -> Json:
        """Return an answer that somebody wrote, or that came in pieces."""
        return {"role": "assistant", "content": text}

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry a key as clients of this API do."""
        return {"x-api-key": key} if self.key_header == "x-api-key" else {"authorization": f"Bearer {key}"}


def events(text: str) -> list[Json]:
    """Return the events of a stream; what is no JSON, as `[DONE]`, stands under `done`."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].strip() for line in block.split("\n") if line.startswith("data:"))
        if data:
            found.append({"done": data} if data == "[DONE]" else json.loads(data))
    return found


def _chat_message(answer: Json) -> Json:
    message: Json = answer["choices"][0]["message"]
    return message


def _chat_pieces(told: Sequence[Json]) -> Iterable[str]:
    for event in told:
        for choice in event.get("choices") or ():
            yield choice["delta"].get("content") or ""


CHAT = Form(
    name="chat",
    path="/chat/completions",
    history="messages",
    text=lambda answer: _chat_message(answer)["content"] or "",
    echo=lambda answer: [_chat_message(answer)],
    streamed=lambda told: "".join(_chat_pieces(told)),
    ended=lambda told: bool(told) and told[-1].get("done") == "[DONE]",
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
    streamed=lambda told: "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta"),
    ended=lambda told: any(event.get("type") in ("response.completed", "response.incomplete") for event in told[-2:]),
    limit="max_output_tokens",
)

MESSAGES = Form(
    name="messages",
    path="/messages",
    history="messages",
    text=lambda answer: "".join(block["text"] for block in answer["content"] if block["type"] == "text"),
    echo=lambda answer: [{"role": "assistant", "content": answer["content"]}],
    streamed=lambda told: "".join(
        event["delta"].get("text", "") for event in told if event["type"] == "content_block_delta"
    ),
    ended=lambda told: bool(told) and told[-1].get("type") == "message_stop",
    always=MappingProxyType({"max_tokens": 512}),
    key_header="x-api-key",
)

TEXT = Form(
    name="completions",
    path="/completions",
    history="prompt",
    text=lambda answer: answer["choices"][0]["text"],
    echo=lambda answer: [],
    streamed=lambda told: "".join(choice["text"] for event in told for choice in event.get("choices") or ()),
    ended=lambda told: bool(told) and told[-1].get("done") == "[DONE]",
)

DIALOGUES: Mapping[str, Form] = MappingProxyType({form.name: form for form in (CHAT, RESPONSES, MESSAGES)})
"""Forms that hold conversations."""
FORMS: Mapping[str, Form] = MappingProxyType({**DIALOGUES, TEXT.name: TEXT})
