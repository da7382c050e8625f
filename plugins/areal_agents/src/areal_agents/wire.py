"""OpenAI's requests and answers, as far as agents use them.

Fields that nobody here reads are ignored, as by other servers. How tokens are drawn is the run's affair: temperature,
top_p, penalties and seed of a request change nothing, since log-probs must be those of the distribution trained.

Knows: field names and shapes of the API.
Does not know: sessions, tokens' way into a trajectory, or HTTP.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation
from areal_core.contract.optional import ToolParse
from areal_core.contract.workflow import Tokenizer

Json = dict[str, Any]  # Any: JSON
MODEL = "policy"
_FINISHED = {StopReason.STOP: "stop", StopReason.LENGTH: "length", StopReason.TOOL_CALLS: "tool_calls"}
_CUT = "length"
_MOST = 16
"""Answers to one prompt."""


class Asked(BaseModel):
    """What both kinds of request may say."""

    model: str = MODEL
    n: int = Field(default=1, ge=1, le=_MOST)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: Json | None = None

    @property
    def limit(self) -> int | None:
        """Return the output tokens asked for."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the texts that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def tells_usage(self) -> bool:
        """Return whether a stream ends with what was used."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatAsked(Asked):
    """A body of `/chat/completions`."""

    messages: list[Json] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[Json] | None = None
    logprobs: bool = False

    @property
    def limit(self) -> int | None:
        """Return the output tokens asked for, by the newer name first."""
        return self.max_completion_tokens or self.max_tokens


class TextAsked(Asked):
    """A body of `/completions`: one prompt, text or token ids."""

    prompt: str | list[int] = Field(min_length=1)
    logprobs: int | None = Field(default=None, ge=0)


class Reward(BaseModel):
    """A body of `/reward`."""

    reward: float = Field(allow_inf_nan=False)


def usage(num_prompt: int, generations: Sequence[Generation]) -> Json:
    """Return how many tokens an answer took."""
    made = sum(len(generation.output_ids) for generation in generations)
    return {"prompt_tokens": num_prompt, "completion_tokens": made, "total_tokens": num_prompt + made}


def chat_choice(
    number: int, generation: Generation, tokenizer: Tokenizer, parsed: ToolParse | None, logprobs: bool
) -> Json:
    """Return one choice of a chat completion."""
    message: Json = {"role": "assistant", "content": text_of(generation, tokenizer)}
    reason = _FINISHED.get(generation.stop_reason, _CUT)
    if parsed is not None and parsed.calls:
        reason = "tool_calls"
        message = {
            "role": "assistant",
            "content": parsed.content or None,
            "tool_calls": [
                {
                    "id": f"call_{uuid.uuid4().hex[:24]}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in parsed.calls
            ],
        }
    told = None
    if logprobs:
        pairs = zip(pieces(generation, tokenizer), generation.logprobs, strict=True)
        told = {
            "content": [
                {"token": piece, "logprob": value, "bytes": list(piece.encode()), "top_logprobs": []}
                for piece, value in pairs
            ],
            "refusal": None,
        }
    return {"index": number, "message": message, "finish_reason": reason, "logprobs": told}


def text_choice(number: int, generation: Generation, tokenizer: Tokenizer, logprobs: int | None) -> Json:
    """Return one choice of a completion."""
    told = None
    if logprobs is not None:
        parts = pieces(generation, tokenizer)
        offsets = [sum(map(len, parts[:place])) for place in range(len(parts))]
        values = list(generation.logprobs)
        told = {"tokens": parts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
    reason = _FINISHED.get(generation.stop_reason, _CUT)
    return {"index": number, "text": text_of(generation, tokenizer), "finish_reason": reason, "logprobs": told}


def text_of(generation: Generation, tokenizer: Tokenizer) -> str:
    """Return an answer as an agent reads it."""
    return tokenizer.decode(generation.output_ids, skip_special_tokens=True)


def pieces(generation: Generation, tokenizer: Tokenizer) -> list[str]:
    """Return each token as text."""
    return [tokenizer.decode([token]) for token in generation.output_ids]


def whole(kind: str, choices: Sequence[Json], used: Json) -> Json:
    """Return an answer that is not streamed; `kind` is chat.completion or text_completion."""
    return {**_head(kind), "choices": list(choices), "usage": used}


def streamed(kind: str, choices: Sequence[Json], used: Json | None) -> Iterator[str]:
    """Return an answer as server-sent events: each choice, how it ended, what was used if asked for, the end."""
    head = _head("chat.completion.chunk" if kind == "chat.completion" else kind)
    for choice in choices:
        ended = {"index": choice["index"], "finish_reason": choice["finish_reason"]}
        if kind == "chat.completion":
            delta = dict(choice["message"])
            if "tool_calls" in delta:
                delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
            said = {"index": choice["index"], "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]}
            yield _event({**head, "choices": [said]})
            yield _event({**head, "choices": [{**ended, "delta": {}, "logprobs": None}]})
        else:
            yield _event({**head, "choices": [choice]})
    if used is not None:
        yield _event({**head, "choices": [], "usage": used})
    yield "data: [DONE]\n\n"


def error_body(message: str, kind: str, code: str | None = None) -> Json:
    """Return an error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _head(kind: str) -> Json:
    return {"id": f"{kind}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": MODEL}


def _event(body: Mapping[str, Any]) -> str:  # Any: JSON
    return f"data: {json.dumps(body)}\n\n"
