"""Items of OpenAI's Responses API as chat messages, and the other way round.

Knows: both shapes, as far as text and functions go.
Does not know: who asks or answers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from areal_core.contract.errors import DatasetError

Item = dict[str, Any]  # Any: JSON
_ROLES = {"developer": "system"}


def chat_messages(given: str | Sequence[Item]) -> list[Item]:
    """Return the messages of a request's `input`.

    Raises:
        DatasetError: an item is of a type that no chat has, such as an image.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Item] = []
    for item in given:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": _ROLES.get(item["role"], item["role"]), "content": _text(item["content"])})
        elif kind == "function_call":
            call = {"id": item["call_id"], "type": "function", "function": _function(item, "arguments")}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
        elif kind != "reasoning":
            raise _strange(f"an item of type {kind}")
    return messages


def chat_tools(given: Sequence[Item]) -> list[Item]:
    """Return the tools of a request as chat completions have them.

    Raises:
        DatasetError: one is no function.
    """
    for tool in given:
        if tool.get("type", "function") != "function":
            raise _strange(f"a tool of type {tool['type']}")
    return [{"type": "function", "function": _function(tool, "description", "parameters")} for tool in given]


def output_items(message: Mapping[str, Any]) -> list[Item]:
    """Return an assistant's message as output items: thoughts, text, calls."""
    items: list[Item] = []
    if thoughts := message.get("reasoning_content"):
        items.append({"id": _id("rs"), "type": "reasoning", "summary": [{"type": "summary_text", "text": thoughts}]})
    calls = message.get("tool_calls") or ()
    if message.get("content") or not calls:
        content: list[Item] = [{"type": "output_text", "text": message.get("content") or "", "annotations": []}]
        head = {"id": _id("msg"), "type": "message", "role": "assistant", "status": "completed"}
        items.append({**head, "content": content})
    for call in calls:
        head = {"id": _id("fc"), "type": "function_call", "call_id": call["id"], "status": "completed"}
        items.append({**head, "name": call["function"]["name"], "arguments": call["function"]["arguments"]})
    return items


def answered(call: Item, output: str) -> Item:
    """Return the item with what a call gave."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


def response(output: Sequence[Item], asked: Mapping[str, Any]) -> Item:
    """Return the whole response to a request."""
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": time.time(),
        "model": "policy",
        "output": list(output),
        "parallel_tool_calls": bool(asked.get("parallel_tool_calls", True)),
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": list(asked.get("tools") or ()),
    }


def _function(item: Item, *names: str) -> Item:
    return {"name": item["name"], **{name: item[name] for name in names if item.get(name) is not None}}


def _text(content: str | Sequence[Item]) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if "text" not in part:
            raise _strange(f"an item of type {part.get('type', '?')}")
    return "".join(part["text"] for part in content)


def _strange(kind: str) -> DatasetError:
    return DatasetError(
        f"a row holds {kind}",
        why="the policy is asked by text and functions",
        fix="leave such rows out",
    )


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
