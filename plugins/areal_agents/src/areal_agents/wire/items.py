"""Items of OpenAI's Responses API: what goes in and what comes out.

Knows: types of items, and which of them together are one message of a chat.
Does not know: the rest of a body, events, or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from areal_agentic.renderer import Message
from areal_agents.asked import Replies, Reply
from areal_agents.wire.body import Content, Json, Part, joined

_TYPES = ("message", "function_call", "function_call_output", "reasoning")


class MessageItem(BaseModel):
    """A message; its type may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(BaseModel):
    """A call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: str = Field(min_length=1)
    arguments: str


class OutputItem(BaseModel):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(BaseModel):
    """What was thought."""

    type: Literal["reasoning"]
    summary: list[Part] = []
    content: list[Part] | None = None


_Item = Annotated[MessageItem | CallItem | OutputItem | ReasoningItem, Field(discriminator="type")]


def _known_items(value: object) -> object:
    """Name the type that may be left out, and refuse items that cannot be read by theirs."""
    if not isinstance(value, list):
        return value
    made = [{"type": "message", **item} if isinstance(item, dict) and "role" in item else item for item in value]
    for item in made:
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in _TYPES:
            raise ValueError(f"an item of the type {kind!r} cannot be given to this model")
    return made


Items = Annotated[str | list[_Item], BeforeValidator(_known_items)]


def chat_of(items: str | Sequence[MessageItem | CallItem | OutputItem | ReasoningItem]) -> Sequence[Message]:
    """Return items as messages: thoughts, text and calls that follow each other in this order are one answer."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    made: list[Json] = []
    for item in items:
        if isinstance(item, OutputItem):
            made.append({"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            made.append({"role": role, "content": joined(item.content)})
        elif isinstance(item, ReasoningItem):
            thoughts = joined(item.content)
            made.append({"role": "assistant", "content": "", **({"reasoning_content": thoughts} if thoughts else {})})
        elif isinstance(item, MessageItem):
            _open_answer(made, ("content", "tool_calls"))["content"] = joined(item.content)
        else:
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            _open_answer(made, ()).setdefault("tool_calls", []).append(call)
    return made


def _open_answer(made: list[Json], closing: Iterable[str]) -> Json:
    """Return the answer that is being put together; a new one if it has one of `closing` already, or there is none."""
    if not made or made[-1]["role"] != "assistant" or any(made[-1].get(key) for key in closing):
        made.append({"role": "assistant", "content": ""})
    return made[-1]


def items_of(replies: Replies, *, logprobs: bool) -> list[Json]:
    """Return an answer as items: thoughts, text, calls."""
    reply, items = replies.first, list[Json]()
    status = "incomplete" if reply.cut else "completed"
    if reply.thoughts:
        thoughts = [{"type": "reasoning_text", "text": reply.thoughts}]
        items.append({"id": f"rs_{replies.id}", "type": "reasoning", "summary": [], "content": thoughts})
    if reply.content or not reply.calls:
        told = _logprobs(reply) if logprobs else []
        text = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": told}
        said = {"role": "assistant", "status": status, "content": [text]}
        items.append({"id": f"msg_{replies.id}", "type": "message", **said})
    for number, call in enumerate(reply.calls):
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": status}
        items.append({"id": f"fc_{replies.id}_{number}", "type": "function_call", **named})
    return items


def _logprobs(reply: Reply) -> list[Json]:
    pairs = zip(reply.pieces, reply.generation.logprobs, strict=True)
    return [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []} for text, value in pairs
    ]
