"""Messages as chat templates take them.

Knows: contents of several parts, which form of arguments a template takes, whose texts are whose.
Does not know: how a template writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_agentic.renderer import Message
from areal_core.contract.errors import DatasetError

Json = dict[str, Any]
"""Any: JSON."""


def content_of(message: Message) -> str:
    """Return the text of a message; parts of text are joined.

    Raises:
        DatasetError: it has parts that are no text, or is no text at all.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        texts = [part.get("text") for part in content if part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise DatasetError(
        f"a message of the role {message.get('role')!r} has a content that renderers do not write",
        why=f"it is a {type(content).__name__}, and not text or parts of text",
        fix="leave images and other parts out",
    )


def refuse_answers(messages: Sequence[Message]) -> None:
    """Refuse messages of the assistant behind an answer.

    Raises:
        DatasetError: there is one.
    """
    if any(message.get("role") == "assistant" for message in messages):
        raise DatasetError(
            "an answer cannot follow an answer",
            why="a bridge takes messages of user, tool or system: answers come from the engine",
        )


@frozen(kw_only=True)
class Form:
    """How one template takes what OpenAI's messages hold.

    Example: Form(text_arguments=True, object_arguments=True)
    """

    text_arguments: bool = False
    """It writes arguments that are JSON text as they stand."""
    object_arguments: bool = True
    """It writes arguments that are an object as JSON."""
    thoughts: str = "reasoning_content"
    """Where it looks for the thoughts of an answer."""

    def of(self, message: Message, written: Callable[[str], str]) -> Json:
        """Return a message as the template takes it, every text of it passed through `written`.

        Raises:
            DatasetError: its content or its arguments are not what the contract says.
        """
        made: Json = {"role": message.get("role"), "content": written(content_of(message))}
        thoughts = message.get("reasoning_content")
        if thoughts:
            made[self.thoughts] = written(str(thoughts))
        if message.get("tool_calls"):
            made["tool_calls"] = [self._call(call, written) for call in message["tool_calls"]]
        for key in ("tool_call_id", "name"):
            if message.get(key) is not None:
                made[key] = written(str(message[key]))
        return made

    def _call(self, call: Mapping[str, Any], written: Callable[[str], str]) -> Json:
        function = call["function"]
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str) and not self.text_arguments:
            arguments = _object(arguments, str(function.get("name")))
        elif not isinstance(arguments, str) and not self.object_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        named = {"name": written(str(function["name"])), "arguments": deep(arguments, written)}
        made: Json = {"type": "function", "function": named}
        return {**made, "id": written(str(call["id"]))} if call.get("id") else made


def deep(value: Any, written: Callable[[str], str]) -> Any:
    """Return JSON with every text of it passed through `written`."""
    if isinstance(value, str):
        return written(value)
    if isinstance(value, Mapping):
        return {written(str(key)): deep(each, written) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [deep(each, written) for each in value]
    return value


def _object(text: str, name: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise DatasetError(f"the arguments of a call of {name!r} are not JSON", why=str(exc)) from exc
    if not isinstance(found, dict):
        raise DatasetError(f"the arguments of a call of {name!r} are no JSON object", why=f"they are {text[:60]!r}")
    return found
