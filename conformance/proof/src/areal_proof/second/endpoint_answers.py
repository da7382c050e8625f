"""What the second endpoint says: answers of four APIs, whole or as events.

Knows: fields and events.
Does not know: how an answer came about.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_agentic.renderer import Answer
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation

Json = dict[str, Any]  # Any: JSON
_IDS = itertools.count(1)


@frozen(kw_only=True)
class Said:
    """One answer: what the engine gave, how it reads, and the text of each token."""

    generation: Generation
    answer: Answer
    pieces: tuple[str, ...]
    calls: tuple[Json, ...]
    """The calls as chat has them, with ids."""
    text: str
    """All of it without its end, up to a stop of the request."""
    stop: str | None
    """Which one, if one stands in it."""

    @property
    def message(self) -> Json:
        """Return it as it stands in a history."""
        return {**self.answer.message, **({"tool_calls": list(self.calls)} if self.calls else {})}

    @property
    def cut(self) -> bool:
        """Whether it did not come to its end."""
        return self.generation.stop_reason is StopReason.LENGTH


def error_body(path: str, why: str, kind: str) -> Json:
    """Return an error as the clients of a path read it."""
    if path == "messages":
        return {"type": "error", "error": {"type": kind, "message": why}}
    return {"error": {"type": kind, "message": why, "param": None, "code": None}}


def _usage(prompt: int, made: Sequence[Said]) -> tuple[int, int]:
    return prompt, sum(len(one.generation.output_ids) for one in made)


def _reason(one: Said, stop: str, length: str, calls: str) -> str:
    return calls if one.calls else length if one.cut else stop


def chat(made: Sequence[Said], prompt: int, logprobs: bool) -> Json:
    """Return an answer of `/chat/completions`."""
    choices = []
    for number, one in enumerate(made):
        message: Json = {"role": "assistant", "content": one.answer.content or (None if one.calls else "")}
        if one.answer.thoughts:
            message["reasoning_content"] = one.answer.thoughts
        if one.calls:
            message["tool_calls"] = list(one.calls)
        told = _logprobs(one)
        choices.append(
            {
                "index": number,
                "message": message,
                "finish_reason": _reason(one, "stop", "length", "tool_calls"),
                "logprobs": {"content": told} if logprobs else None,
            }
        )
    before, after = _usage(prompt, made)
    used = {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}
    head = {"id": f"chatcmpl-{next(_IDS)}", "object": "chat.completion", "created": 0, "model": "policy"}
    return {**head, "choices": choices, "usage": used}


def _logprobs(one: Said) -> list[Json]:
    pairs = zip(one.pieces, one.generation.logprobs, strict=True)
    return [{"token": text, "logprob": value, "bytes": None, "top_logprobs": []} for text, value in pairs]


def completions(made: Sequence[Said], prompt: int, logprobs: bool) -> Json:
    """Return an answer of `/completions`."""
    choices = []
    for number, one in enumerate(made):
        told: Json = {"tokens": list(one.pieces), "token_logprobs": list(one.generation.logprobs), "top_logprobs": None}
        ended = "length" if one.cut else "stop"
        choices.append(
            {"index": number, "text": one.text, "finish_reason": ended, "logprobs": told if logprobs else None}
        )
    before, after = _usage(prompt, made)
    used = {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}
    head = {"id": f"cmpl-{next(_IDS)}", "object": "text_completion", "created": 0, "model": "policy"}
    return {**head, "choices": choices, "usage": used}


def responses(made: Sequence[Said], prompt: int, logprobs: bool) -> Json:
    """Return an answer of `/responses`."""
    (one,) = made
    output: list[Json] = []
    if one.answer.thoughts:
        thoughts = [{"type": "reasoning_text", "text": one.answer.thoughts}]
        output.append({"type": "reasoning", "id": f"rs_{next(_IDS)}", "summary": [], "content": thoughts})
    if one.answer.content or not one.calls:
        told_logprobs = _logprobs(one) if logprobs else []
        part = {"type": "output_text", "text": one.answer.content, "annotations": [], "logprobs": told_logprobs}
        said = {"type": "message", "id": f"msg_{next(_IDS)}", "role": "assistant", "status": "completed"}
        output.append({**said, "content": [part]})
    for call in one.calls:
        told = {"type": "function_call", "call_id": call["id"], "status": "completed", "id": f"fc_{next(_IDS)}"}
        output.append({**told, **call["function"]})
    before, after = _usage(prompt, made)
    used = {"input_tokens": before, "output_tokens": after, "total_tokens": before + after}
    status = {"status": "incomplete" if one.cut else "completed"}
    head = {"id": f"resp_{next(_IDS)}", "object": "response", "created_at": 0, "model": "policy"}
    return {**head, **status, "output": output, "usage": used}


def messages(made: Sequence[Said], prompt: int, thoughts: bool) -> Json:
    """Return an answer of `/messages`, with thoughts for those who asked for them."""
    (one,) = made
    content: list[Json] = []
    if one.answer.thoughts and thoughts:
        content.append({"type": "thinking", "thinking": one.answer.thoughts, "signature": ""})
    if one.answer.content or not one.calls:
        content.append({"type": "text", "text": one.answer.content})
    for call in one.calls:
        told = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
        content.append({**told, "input": json.loads(call["function"]["arguments"])})
    before, after = _usage(prompt, made)
    head = {"id": f"msg_{next(_IDS)}", "type": "message", "role": "assistant", "model": "policy"}
    reason = _reason(one, "stop_sequence" if one.stop else "end_turn", "max_tokens", "tool_use")
    used = {"input_tokens": before, "output_tokens": after}
    return {**head, "content": content, "stop_reason": reason, "stop_sequence": one.stop, "usage": used}


WRITERS: Mapping[str, Callable[[Sequence[Said], int, bool], Json]] = {
    "chat/completions": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
}
"""Path behind `/v1/` -> its whole answers."""


def _split(text: str) -> list[str]:
    """Return a text in pieces."""
    return [text[at : at + 3] for at in range(0, len(text), 3)]


def streamed(path: str, whole: Json) -> Iterator[str]:
    """Return the events of a whole answer."""
    events = {"responses": _response_events, "messages": _message_events}.get(path)
    if events is not None:
        for event in events(whole):
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        return
    for choice in whole["choices"]:
        for number, (delta, ended) in enumerate(_deltas(path, choice)):
            logprobs = None if number else choice["logprobs"]
            told = {"index": choice["index"], **delta, "finish_reason": ended, "logprobs": logprobs}
            yield f"data: {json.dumps({**whole, 'choices': [told]})}\n\n"
    yield "data: [DONE]\n\n"


def _deltas(path: str, choice: Json) -> Iterator[tuple[Json, str | None]]:
    if path == "completions":
        for piece in _split(choice["text"]):
            yield {"text": piece}, None
        yield {"text": ""}, choice["finish_reason"]
        return
    message = choice["message"]
    yield {"delta": {"role": "assistant", "content": ""}}, None
    for piece in _split(message.get("reasoning_content", "")):
        yield {"delta": {"reasoning_content": piece}}, None
    for piece in _split(message["content"] or ""):
        yield {"delta": {"content": piece}}, None
    for number, call in enumerate(message.get("tool_calls", ())):
        yield {"delta": {"tool_calls": [{"index": number, **call}]}}, None
    yield {"delta": {}}, choice["finish_reason"]


def _response_events(whole: Json) -> Iterator[Json]:
    yield {"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}}
    for place, item in enumerate(whole["output"]):
        yield {"type": "response.output_item.added", "output_index": place, "item": item}
        for part in item.get("content", ()):
            at = {"output_index": place, "content_index": 0, "item_id": item["id"]}
            for piece in _split(part["text"]):
                yield {"type": f"response.{part['type']}.delta", "delta": piece, **at}
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


_BLOCKS = {
    "text": ("text", "text_delta", "text"),
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}
"""Type of a block -> its field that comes in pieces, the type of such a piece, and its field."""


def _message_events(whole: Json) -> Iterator[Json]:
    yield {"type": "message_start", "message": {**whole, "content": []}}
    for place, block in enumerate(whole["content"]):
        name, kind, key = _BLOCKS[block["type"]]
        empty = {**block, name: {} if name == "input" else ""}
        yield {"type": "content_block_start", "index": place, "content_block": empty}
        for piece in _split(json.dumps(block[name]) if name == "input" else block[name]):
            yield {"type": "content_block_delta", "index": place, "delta": {"type": kind, key: piece}}
        yield {"type": "content_block_stop", "index": place}
    ended = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": whole["usage"]}
    yield {"type": "message_stop"}
