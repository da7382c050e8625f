"""OpenAI's completions: a text, or its tokens, to go on with.

Knows: fields of bodies, answers and chunks.
Does not know: sessions, or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from areal_agents.asked import Replies, Reply, TextAsk
from areal_agents.episode import AgentSession
from areal_agents.wire.body import MODEL, Api, Body, Json, NotDone, absent, event, now

_NOT_DONE = {
    "echo": "the prompt is not told again",
    "suffix": "the policy writes what follows, and nothing that stands before a text",
}
_MOST = 16
"""Answers to one prompt."""


class Sampled(Body):
    """What both of OpenAI's older APIs say about an answer."""

    model: str = MODEL
    n: int | None = Field(default=None, ge=1, le=_MOST)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: Json | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in given if stop)

    @property
    def tells_usage(self) -> bool:
        """Return whether a stream ends with what was used."""
        return bool((self.stream_options or {}).get("include_usage"))


def _one(value: object) -> object:
    """Return the only prompt of a list of prompts, as some clients send it."""
    several = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    if len(several) > 1:
        raise ValueError("a request has one prompt; ask once for each")
    return several[0]


class TextBody(Sampled):
    """A body of `/completions`: one prompt, text or token ids."""

    prompt: Annotated[str | list[Annotated[int, Field(ge=0, strict=True)]], BeforeValidator(_one)] = Field(min_length=1)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class Completions(Api[TextBody]):
    """`/v1/completions`."""

    def asked(self, body: TextBody, session: AgentSession) -> TextAsk:
        """Return what a body asks."""
        absent(body, _NOT_DONE)
        logprobs = body.logprobs is not None
        n = body.n or 1
        if (body.best_of or n) > n:
            raise NotDone("best_of: every answer is told, and none chosen; use n")
        return TextAsk(prompt=body.prompt, limit=body.max_tokens, stops=body.stops, n=n, logprobs=logprobs)

    def whole(self, body: TextBody, replies: Replies) -> Json:
        """Return the answer that is not streamed."""
        return {**_head(replies), "choices": _choices(body, replies), "usage": usage(replies)}

    def events(self, body: TextBody, replies: Replies) -> Iterator[str]:
        """Return each choice as one chunk, then what was used if asked for."""
        head = _head(replies)
        for choice in _choices(body, replies):
            yield event({**head, "choices": [choice]})
        if body.tells_usage:
            yield event({**head, "choices": [], "usage": usage(replies)})
        yield "data: [DONE]\n\n"


def usage(replies: Replies) -> Json:
    """Return how many tokens the answers took."""
    prompt, made = replies.num_prompt, replies.num_output
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def _head(replies: Replies) -> Json:
    return {"id": f"cmpl-{replies.id}", "object": "text_completion", "created": now(), "model": MODEL}


def _choices(body: TextBody, replies: Replies) -> list[Json]:
    return [
        {
            "index": number,
            "text": reply.content,
            "finish_reason": "length" if reply.cut else "stop",
            "logprobs": None if body.logprobs is None else _logprobs(reply),
        }
        for number, reply in enumerate(replies.replies)
    ]


def _logprobs(reply: Reply) -> dict[str, Any]:  # Any: JSON
    offsets, place = [], 0
    for piece in reply.pieces:
        offsets.append(place)
        place += len(piece)
    values = list(reply.generation.logprobs)
    return {"tokens": list(reply.pieces), "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
