"""OpenAI's chat completions.

Knows: fields of bodies, answers and chunks.
Does not know: how a chat becomes tokens, or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from areal_agents.asked import ChatAsk, Replies, Reply
from areal_agents.episode import AgentSession
from areal_agents.wire.body import MODEL, Api, Content, Json, NotDone, absent, chosen, deltas, event, joined, now
from areal_agents.wire.body import structure as structure_of
from areal_agents.wire.body import tool as tool_of
from areal_agents.wire.completions import Sampled, usage

_NOT_DONE = {
    "top_logprobs": "only the log-probs of the tokens that were drawn are known",
    "functions": "use tools",
    "function_call": "use tools",
    "audio": "the policy writes text",
    "web_search_options": "nothing is searched here",
}


class Function(BaseModel):
    """A function that is called."""

    name: str = Field(min_length=1)
    arguments: str = "{}"


class Call(BaseModel):
    """A call in a message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(BaseModel):
    """A message of a history."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _said(self) -> ChatMessage:
        """Refuse a message that says nothing: only an answer may, as one that calls tools."""
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the role {self.role!r} needs a content")
        return self

    def plain(self) -> Json:
        """Return it as renderers take it."""
        made: Json = {"role": "system" if self.role == "developer" else self.role, "content": joined(self.content)}
        if self.role == "assistant" and self.reasoning_content:
            made["reasoning_content"] = self.reasoning_content
        if self.role == "assistant" and self.tool_calls:
            made["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        for key in ("name", "tool_call_id"):
            if getattr(self, key):
                made[key] = getattr(self, key)
        return made


class Described(BaseModel):
    """A function that may be called."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: Json | None = None


class ChatTool(BaseModel):
    """A tool of a chat."""

    type: Literal["function"]
    function: Described

    def plain(self) -> Json:
        """Return it as renderers take it."""
        return tool_of(self.function.name, self.function.description, self.function.parameters)


class Format(BaseModel):
    """What an answer's text is to look like."""

    type: str
    json_schema: Json | None = None


class ChatBody(Sampled):
    """A body of `/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[ChatTool] | None = None
    tool_choice: str | Json | None = None
    response_format: Format | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    functions: list[Json] | None = None
    function_call: str | Json | None = None
    audio: Json | None = None
    web_search_options: Json | None = None


class ChatCompletions(Api[ChatBody]):
    """`/v1/chat/completions`."""

    def asked(self, body: ChatBody, session: AgentSession) -> ChatAsk:
        """Return what a body asks."""
        absent(body, _NOT_DONE)
        tools = chosen(body.tool_choice, [each.plain() for each in body.tools or ()])
        structure = None
        if body.response_format is not None:
            schema = (body.response_format.json_schema or {}).get("schema")
            structure = structure_of(body.response_format.type, schema, tools=bool(tools))
        if body.messages[-1].role == "assistant":
            raise NotDone("messages end with the assistant: an answer that was begun is not gone on with")
        return ChatAsk(
            messages=[message.plain() for message in body.messages],
            tools=tools,
            limit=body.max_completion_tokens or body.max_tokens,
            stops=body.stops,
            n=body.n or 1,
            structure=structure,
            logprobs=bool(body.logprobs),
        )

    def whole(self, body: ChatBody, replies: Replies) -> Json:
        """Return the answer that is not streamed."""
        choices = [
            {
                "index": number,
                "message": _message(reply),
                "finish_reason": _reason(reply),
                "logprobs": _logprobs(reply) if body.logprobs else None,
            }
            for number, reply in enumerate(replies.replies)
        ]
        return {**_head(replies, "chat.completion"), "choices": choices, "usage": usage(replies)}

    def events(self, body: ChatBody, replies: Replies) -> Iterator[str]:
        """Return the choices one after the other, then what was used if asked for."""
        head = _head(replies, "chat.completion.chunk")
        if body.tells_usage:
            head["usage"] = None
        for number, reply in enumerate(replies.replies):
            told = _logprobs(reply) if body.logprobs else None
            for delta in _deltas(reply):
                choice = {"index": number, "delta": delta, "finish_reason": None, "logprobs": told}
                yield event({**head, "choices": [choice]})
                told = None
            ended = {"index": number, "delta": {}, "finish_reason": _reason(reply), "logprobs": None}
            yield event({**head, "choices": [ended]})
        if body.tells_usage:
            yield event({**head, "choices": [], "usage": usage(replies)})
        yield "data: [DONE]\n\n"


def _head(replies: Replies, kind: str) -> Json:
    return {"id": f"chatcmpl-{replies.id}", "object": kind, "created": now(), "model": MODEL}


def _reason(reply: Reply) -> str:
    if reply.calls:
        return "tool_calls"
    return "length" if reply.cut else "stop"


def _message(reply: Reply) -> Json:
    made = {**reply.message, "refusal": None}
    if reply.calls and not reply.content:
        made["content"] = None
    return made


def _deltas(reply: Reply) -> Iterator[Json]:
    yield {"role": "assistant", "content": None if reply.calls and not reply.content else ""}
    for piece in deltas(reply.thoughts):
        yield {"reasoning_content": piece}
    for piece in deltas(reply.content):
        yield {"content": piece}
    for number, call in enumerate(reply.calls):
        begun = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": number, "id": call.id, "type": "function", "function": begun}]}
        for piece in deltas(call.arguments):
            yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}


def _logprobs(reply: Reply) -> Json:
    pairs: Sequence[tuple[str, float]] = list(zip(reply.pieces, reply.generation.logprobs, strict=True))
    told = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []} for text, value in pairs
    ]
    return {"content": told, "refusal": None}
