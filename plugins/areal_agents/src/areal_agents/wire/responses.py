"""OpenAI's Responses API.

Knows: fields of bodies, answers and events; that a request may name the response it goes on from.
Does not know: items (`items`), how a chat becomes tokens, or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from pydantic import BaseModel, Field

from areal_agentic.renderer import Message
from areal_agents.asked import ChatAsk, Replies, TextAsk
from areal_agents.episode import AgentSession
from areal_agents.wire.body import MODEL, Api, Body, Json, NotDone, absent, chosen, deltas, event, now
from areal_agents.wire.body import structure as structure_of
from areal_agents.wire.body import tool as tool_of
from areal_agents.wire.items import Items, chat_of, items_of

_LOGPROBS = "message.output_text.logprobs"
_NOT_DONE = {
    "background": "an answer is waited for",
    "conversation": "name the response to go on from: previous_response_id",
    "prompt": "there are no stored prompts",
    "top_logprobs": "only the log-probs of the tokens that were drawn are known",
}


class Offered(BaseModel):
    """A tool; only functions can be given."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None

    def plain(self) -> Json:
        """Return it as renderers take it.

        Raises:
            NotDone: it is a tool of OpenAI's own.
        """
        if self.type != "function" or not self.name:
            raise NotDone(f"the tool {self.type!r} is not here: describe a function by name and parameters")
        return tool_of(self.name, self.description, self.parameters)

    def told(self) -> Json:
        """Return it as answers repeat it."""
        return self.model_dump(include={"type", "name", "description", "parameters", "strict"})


class TextFormat(BaseModel):
    """What an answer's text is to look like."""

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema_: Json | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """Options of texts."""

    format: TextFormat = TextFormat()


class ResponsesBody(Body):
    """A body of `/responses`."""

    model: str = MODEL
    input: Items
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Offered] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: TextOptions | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    conversation: str | Json | None = None
    prompt: Json | None = None
    top_logprobs: int | None = None

    @property
    def logprobs(self) -> bool:
        """Return whether log-probs are asked for."""
        return _LOGPROBS in (self.include or ())


class Responses(Api[ResponsesBody]):
    """`/v1/responses`."""

    def asked(self, body: ResponsesBody, session: AgentSession) -> ChatAsk:
        """Return what a body asks."""
        absent(body, _NOT_DONE)
        before: list[Message] = []
        if body.previous_response_id is not None:
            known = session.responses.get(body.previous_response_id)
            if known is None:
                raise NotDone(f"this session has no response {body.previous_response_id!r}", status=404)
            before = list(known)
        messages = [*before, *chat_of(body.input)]
        if not messages or messages[-1]["role"] == "assistant":
            raise NotDone("input ends with the assistant: an answer that was begun is not gone on with")
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        tools = chosen(body.tool_choice, [offered.plain() for offered in body.tools or ()])
        form = (body.text or TextOptions()).format
        return ChatAsk(
            messages=[*system, *messages],
            tools=tools,
            limit=body.max_output_tokens,
            structure=structure_of(form.type, form.schema_, tools=bool(tools)),
            logprobs=body.logprobs,
        )

    def answered(self, body: ResponsesBody, ask: ChatAsk | TextAsk, replies: Replies, session: AgentSession) -> None:
        """Remember the conversation without its instructions, which are not taken over."""
        assert isinstance(ask, ChatAsk)
        if body.store is not False:
            said = ask.messages[1:] if body.instructions else ask.messages
            session.responses[_id(replies)] = [*said, replies.first.message]

    def whole(self, body: ResponsesBody, replies: Replies) -> Json:
        """Return the answer that is not streamed."""
        used = {
            "input_tokens": replies.num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": replies.num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": replies.num_prompt + replies.num_output,
        }
        cut = replies.first.cut
        return {
            **_begun(body, replies),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": items_of(replies, logprobs=body.logprobs),
            "usage": used,
        }

    def events(self, body: ResponsesBody, replies: Replies) -> Iterator[str]:
        """Return the answer item by item."""
        number = count()
        done = self.whole(body, replies)
        begun = _begun(body, replies)
        last = {"type": f"response.{done['status']}", "response": done}
        for each in (
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            *(told for index, item in enumerate(done["output"]) for told in _item_events(index, item)),
            last,
        ):
            yield event({**each, "sequence_number": next(number)}, each["type"])


def _id(replies: Replies) -> str:
    return f"resp_{replies.id}"


def _begun(body: ResponsesBody, replies: Replies) -> Json:
    """Return a response to which nothing was said yet."""
    form = (body.text or TextOptions()).format.model_dump(by_alias=True, exclude_none=True)
    return {
        "id": _id(replies),
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": MODEL,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.previous_response_id,
        "reasoning": None,
        "temperature": None,
        "text": {"format": form},
        "tool_choice": "none" if body.tool_choice == "none" else "auto",
        "tools": [offered.told() for offered in body.tools or ()],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def _item_events(index: int, item: Json) -> Iterator[dict[str, Any]]:  # Any: JSON
    here = {"output_index": index}
    part = {**here, "item_id": item["id"], "content_index": 0}
    empty: Json = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    status = {} if item["type"] == "reasoning" else {"status": "in_progress"}
    begun = {**item, **empty, **status}
    yield {"type": "response.output_item.added", **here, "item": begun}
    if item["type"] == "function_call":
        call = {**here, "item_id": item["id"]}
        for piece in deltas(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **call, "delta": piece}
        yield {"type": "response.function_call_arguments.done", **call, "arguments": item["arguments"]}
    else:
        [content] = item["content"]
        logprobs: Json = {"logprobs": []} if item["type"] == "message" else {}
        yield {"type": "response.content_part.added", **part, "part": {**content, "text": "", **logprobs}}
        for piece in deltas(content["text"]):
            yield {"type": f"response.{content['type']}.delta", **part, "delta": piece, **logprobs}
        yield {"type": f"response.{content['type']}.done", **part, "text": content["text"], **logprobs}
        yield {"type": "response.content_part.done", **part, "part": content}
    yield {"type": "response.output_item.done", **here, "item": item}
