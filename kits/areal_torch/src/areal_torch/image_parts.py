"""Where the images of a row stand in its conversation, as chat templates read it.

Knows: the parts of a message: {"type": "image"} where an image stands, {"type": "text", "text": ...} elsewhere.
Does not know: the images, or the tokens a template puts around them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]  # Any: a chat template reads it
_IMAGE = {"type": "image"}


def with_image_parts(messages: Sequence[Message], count: int, marker: str) -> list[Message]:
    """Return a conversation that says where its `count` images stand.

    Image parts of its own stay where they are. Without any, an image stands wherever a text has the `marker`; and where
    no text has it, all stand at the beginning of the first message of the user. How many there must be is not checked
    here: tokens tell.

    Example: with_image_parts([{"role": "user", "content": "Is <image> red?"}], 1, "<image>") gives the user's
        content as [{"type": "text", "text": "Is "}, {"type": "image"}, {"type": "text", "text": " red?"}]
    """
    contents = [_parts(message) for message in messages]
    if not _any_image(contents):
        contents = [[piece for part in parts for piece in _cut(part, marker)] for parts in contents]
    if not _any_image(contents):
        first = next((number for number, message in enumerate(messages) if message.get("role") == "user"), 0)
        contents[first : first + 1] = [[_IMAGE] * count + parts for parts in contents[first : first + 1]]
    return [
        {**message, "content": parts} if _any_image([parts]) else message
        for message, parts in zip(messages, contents, strict=True)
    ]


def _any_image(contents: Sequence[Sequence[Message]]) -> bool:
    return any(part.get("type") == "image" for parts in contents for part in parts)


def _parts(message: Message) -> list[Message]:
    """Return the parts of a message without keys that are None: `datasets` gives every part the keys of all others."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        return []
    return [
        {key: value for key, value in part.items() if value is not None}
        for part in content
        if isinstance(part, Mapping)
    ]


def _cut(part: Message, marker: str) -> list[Message]:
    text = part.get("text")
    if not marker or part.get("type") != "text" or not isinstance(text, str) or marker not in text:
        return [part]
    pieces = re.split(f"({re.escape(marker)})", text)
    return [_IMAGE if piece == marker else {"type": "text", "text": piece} for piece in pieces if piece]
