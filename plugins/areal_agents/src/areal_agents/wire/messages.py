"""Anthropic's messages.

Knows: fields of bodies, answers and events.
Does not know: how a chat becomes tokens, or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field

from areal_agents.asked import ChatAsk, Replies, Reply
from areal_agents.episode import AgentSession
from areal_agents.wire.body import MODEL, Api, Body, Content, Json, NotDone, chosen, deltas, event, joined
from areal_agents.wire.body import structure as structure_of
from areal_agents.wire.body import tool as tool_of

_TYPES = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_BETWEEN = "\n\n"
"""Stands between blocks of a system prompt."""


class TextBlock(BaseModel):
    """What is said."""

    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    """What was thought."""

    type: Literal["thinking"]
    thinking: str


class RedactedBlock(BaseModel):
    """What was thought elsewhere, and cannot be read."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: Json


class ToolResultBlock(BaseModel):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Content | None = None


def _known_blocks(value: object) -> object:
    """Refuse a block that cannot be read by its name."""
    for block in value if isinstance(value, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in _TYPES:
            raise ValueError(f"a block of the type {kind!r} cannot be given to this model, which reads text")
    return value


_Block = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
Block = Annotated[_Block, Field(discriminator="type")]


class Said(BaseModel):
    """A message of a history."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[str | list[Block], BeforeValidator(_known_blocks)]

    def plain(self) -> list[Json]:
        """Return it as messages that renderers take: what tools answered is a message for each."""
        blocks = [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        return [_answer(blocks)] if self.role == "assistant" else _told(self.role, blocks)


class Offered(BaseModel):
    """A tool that may be called."""

    type: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: Json | None = None


class CountBody(Body):
    """A body of `/messages/count_tokens`, and what `/messages` has in common with it."""

    model: str = MODEL
    messages: list[Said] = Field(min_length=1)
    system: Content | None = None
    tools: list[Offered] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None


class MessagesBody(CountBody):
    """A body of `/messages`."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_config: Json | None = None
    output_format: Json | None = None

    @property
    def format(self) -> object:
        """Return what an answer's text is to look like, by the newer name first."""
        return (self.output_config or {}).get("format") or self.output_format


class Messages(Api[MessagesBody]):
    """`/v1/messages`."""

    ping: ClassVar[str] = event({"type": "ping"}, "ping")

    def asked(self, body: MessagesBody, session: AgentSession) -> ChatAsk:
        """Return what a body asks."""
        chat = self.chat(body)
        structure = None
        if isinstance(body.format, dict):
            kind, schema = str(body.format.get("type")), body.format.get("schema")
            structure = structure_of(kind, schema, tools=bool(chat.tools))
        return ChatAsk(
            messages=chat.messages,
            tools=chat.tools,
            limit=body.max_tokens,
            stops=tuple(stop for stop in body.stop_sequences or () if stop),
            structure=structure,
        )

    def chat(self, body: CountBody) -> ChatAsk:
        """Return the conversation of a body.

        Raises:
            NotDone: an answer is begun, or a tool is Anthropic's own.
        """
        system = joined(body.system, _BETWEEN)
        messages = [message for said in body.messages for message in said.plain()]
        if not messages or messages[-1]["role"] == "assistant":
            raise NotDone("messages end with the assistant: an answer that was begun is not gone on with")
        tools = chosen(body.tool_choice, [_tool(offered) for offered in body.tools or ()])
        return ChatAsk(messages=[*([{"role": "system", "content": system}] if system else []), *messages], tools=tools)

    def whole(self, body: MessagesBody, replies: Replies) -> Json:
        """Return the answer that is not streamed."""
        reply = replies.first
        told = {"content": _blocks(body, reply), **_ending(reply), "usage": _usage(replies, replies.num_output)}
        return {**_head(replies), **told}

    def events(self, body: MessagesBody, replies: Replies) -> Iterator[str]:
        """Return the answer block by block."""
        reply = replies.first
        begun = {**_head(replies), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**begun, "usage": _usage(replies, 0)})
        for index, block in enumerate(_blocks(body, reply)):
            yield from _block_events(index, block)
        yield _event("message_delta", delta=_ending(reply), usage={"output_tokens": replies.num_output})
        yield _event("message_stop")


def _answer(blocks: Sequence[_Block]) -> Json:
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    made: Json = {"role": "assistant", "content": text}
    if thoughts:
        made["reasoning_content"] = thoughts
    if calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _written(call.input)}}
            for call in calls
        ]
    return made


def _told(role: str, blocks: Sequence[_Block]) -> list[Json]:
    made: list[Json] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            made.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": joined(block.content)})
        elif isinstance(block, TextBlock) and made and made[-1]["role"] == role:
            made[-1]["content"] += _BETWEEN + block.text
        elif isinstance(block, TextBlock):
            made.append({"role": role, "content": block.text})
    return made


def _written(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tool(offered: Offered) -> Json:
    if offered.type not in (None, "custom"):
        raise NotDone(f"the tool {offered.type!r} is Anthropic's own: describe it by an input_schema")
    return tool_of(offered.name, offered.description, offered.input_schema)


def _head(replies: Replies) -> Json:
    return {"id": f"msg_{replies.id}", "type": "message", "role": "assistant", "model": MODEL}


def _usage(replies: Replies, num_output: int) -> Json:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": replies.num_prompt, "output_tokens": num_output, **cached}


def _ending(reply: Reply) -> Json:
    if reply.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if reply.cut:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "stop_sequence" if reply.stop else "end_turn", "stop_sequence": reply.stop}


def _blocks(body: MessagesBody, reply: Reply) -> list[Json]:
    """Return an answer; thoughts only to those who asked for them, since others read the first block as the text."""
    blocks: list[Json] = []
    if reply.thoughts and (body.thinking or {}).get("type") in ("enabled", "adaptive"):
        blocks.append({"type": "thinking", "thinking": reply.thoughts, "signature": ""})
    if reply.content or not reply.calls:
        blocks.append({"type": "text", "text": reply.content, "citations": None})
    for call in reply.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)})
    return blocks


def _object(arguments: str) -> dict[str, Any]:  # Any: JSON
    """Return the arguments of a call, which renderers and engines promise to be an object."""
    found = json.loads(arguments, parse_constant=str)
    assert isinstance(found, dict)
    return found


def _block_events(index: int, block: Json) -> Iterator[str]:
    name, kind, empty = {
        "text": ("text", "text_delta", ""),
        "thinking": ("thinking", "thinking_delta", ""),
        "tool_use": ("input", "input_json_delta", {}),
    }[block["type"]]
    yield _event("content_block_start", index=index, content_block={**block, name: empty})
    told = _written(block[name]) if block["type"] == "tool_use" else block[name]
    key = "partial_json" if block["type"] == "tool_use" else name
    for piece in deltas(told):
        yield _event("content_block_delta", index=index, delta={"type": kind, key: piece})
    if block["type"] == "thinking":
        signed = {"type": "signature_delta", "signature": block["signature"]}
        yield _event("content_block_delta", index=index, delta=signed)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **fields: object) -> str:
    return event({"type": kind, **fields}, kind)
