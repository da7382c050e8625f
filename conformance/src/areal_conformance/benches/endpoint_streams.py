"""Streams of the four APIs: server-sent events, put together again as clients do it.

An answer made of events is of the form of one that was not streamed, as far as it is looked at: texts, calls, why it
ended, usage, log-probs.

Knows: events and their fields.
Does not know: bodies, or how an answer is read (`endpoint_forms`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]  # Any: JSON


def events(text: str) -> list[Json]:
    """Return the events of a stream; what is no JSON, as `[DONE]`, stands under `done`."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].strip() for line in block.split("\n") if line.startswith("data:"))
        if data:
            found.append({"done": data} if data == "[DONE]" else json.loads(data))
    return found


def whole_chat(told: Sequence[Json]) -> Json:
    """Return the answer of `/chat/completions`, each choice put together by its index."""
    choices: dict[int, Json] = {}
    for piece in _choices(told):
        empty: Json = {"message": {"content": "", "tool_calls": []}, "finish_reason": None, "logprobs": None}
        one = choices.setdefault(piece["index"], {"index": piece["index"], **empty})
        delta, message = piece["delta"], one["message"]
        message["role"] = delta.get("role") or message.get("role")
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls") or ():
            _add_call(message["tool_calls"], call)
        one["finish_reason"] = piece["finish_reason"] or one["finish_reason"]
        one["logprobs"] = _joined(one["logprobs"], piece.get("logprobs"))
    for one in choices.values():
        if not one["message"]["tool_calls"]:
            del one["message"]["tool_calls"]
    return {"choices": [choices[index] for index in sorted(choices)], "usage": _last_usage(told)}


def _add_call(calls: list[Json], piece: Json) -> None:
    while len(calls) <= piece["index"]:
        calls.append({"id": None, "type": "function", "function": {"name": None, "arguments": ""}})
    call, function = calls[piece["index"]], piece.get("function") or {}
    call["id"] = piece.get("id") or call["id"]
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""


def whole_text(told: Sequence[Json]) -> Json:
    """Return the answer of `/completions`."""
    choices: dict[int, Json] = {}
    for piece in _choices(told):
        empty: Json = {"text": "", "finish_reason": None, "logprobs": None}
        one = choices.setdefault(piece["index"], {"index": piece["index"], **empty})
        one["text"] += piece["text"]
        one["finish_reason"] = piece["finish_reason"] or one["finish_reason"]
        one["logprobs"] = _joined(one["logprobs"], piece.get("logprobs"))
    return {"choices": [choices[index] for index in sorted(choices)], "usage": _last_usage(told)}


def _choices(told: Sequence[Json]) -> Iterable[Json]:
    return (choice for event in told for choice in event.get("choices") or ())


def _joined(before: Json | None, more: Json | None) -> Json | None:
    """Return log-probs of pieces one behind the other."""
    if not before or not more:
        return more or before
    return {key: [*before[key], *value] if isinstance(value, list) else value for key, value in more.items()}


def _last_usage(told: Sequence[Json]) -> Json | None:
    return next((event["usage"] for event in reversed(told) if event.get("usage")), None)


def whole_response(told: Sequence[Json]) -> Json:
    """Return the answer of `/responses`: what its last event tells, texts and arguments as their pieces tell them."""
    items: dict[int, Json] = {}
    for event in told:
        place = event.get("output_index", -1)
        if event["type"] == "response.output_item.added":
            items[place] = {**event["item"], **({"arguments": ""} if "arguments" in event["item"] else {"pieces": ""})}
        elif event["type"] in ("response.output_text.delta", "response.reasoning_text.delta"):
            items[place]["pieces"] += event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            items[place]["arguments"] += event["delta"]
        elif event["type"] == "response.output_item.done":
            items[place] = _finished(items[place], event["item"])
    last: Json = next(event["response"] for event in reversed(told) if "response" in event)
    return {**last, "output": [items[place] for place in sorted(items)]}


def _finished(begun: Json, item: Json) -> Json:
    """Return an item as it was said to be in the end, with the text or the arguments of its pieces."""
    if item["type"] == "function_call":
        return {**item, "arguments": begun["arguments"] or item["arguments"]}
    if item["type"] not in ("message", "reasoning") or not item.get("content"):
        return item
    (part, *others) = item["content"]
    return {**item, "content": [{**part, "text": begun["pieces"]}, *others]}


def whole_message(told: Sequence[Json]) -> Json:
    """Return the answer of Anthropic's `/messages`."""
    answer: Json = {}
    inputs: dict[int, str] = {}
    for event in told:
        if event["type"] == "message_start":
            answer = {**event["message"], "content": []}
        elif event["type"] == "content_block_start":
            answer["content"].append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            block, delta = answer["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            for key in ("text", "thinking"):
                block.update({key: block[key] + delta[key]} if key in delta else {})
        elif event["type"] == "message_delta":
            answer |= event["delta"]
            answer["usage"] = {**answer["usage"], **event["usage"]}
    for place, text in inputs.items():
        answer["content"][place]["input"] = json.loads(text or "{}")
    return answer
