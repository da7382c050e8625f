"""What an output of gpt-oss says: channels of the harmony format.

Knows: analysis is thoughts, final is content, a message to `functions.NAME` is a call.
Does not know: tokens or templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from areal_agentic.renderer import Answer
from areal_core.contract.optional import ToolCall
from areal_renderers.reading import Reading

_PART = re.compile(
    r"(?:<\|start\|>assistant)?(?P<to>[^<]*)<\|channel\|>(?P<channel>\w+)(?P<head>.*?)<\|message\|>(?P<body>.*?)"
    r"(?P<end><\|end\|>|<\|call\|>|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"to=functions\.(\S+?)(?=$|\s|<)")


def channels(text: str, opened: bool) -> Reading:
    """Read the messages of one answer; text that is not in channels is content, as it stands.

    What is said to the user before a call is read as thoughts: the template has one place for both.
    """
    thoughts, content, calls, place = [], [], [], 0
    closed = True
    for match in _PART.finditer(text):
        if match.start() != place:
            break
        place = match.end()
        recipient = _RECIPIENT.search(match["to"] + match["head"])
        if recipient is not None and _is_object(match["body"]):
            calls.append(ToolCall(name=recipient[1], arguments=match["body"]))
        elif recipient is None and match["channel"] == "analysis":
            thoughts.append(match["body"])
            closed = match["end"] != ""
        elif recipient is None:
            content.append(match["body"])
        else:
            content.append(match[0])
    if text[place:]:
        content.append(text[place:])
    if calls:
        thoughts, content = [*thoughts, *content], []
    answer = Answer(content="".join(content), thoughts="\n".join(thoughts), calls=calls)
    return Reading(answer=answer, block=bool(thoughts), closed=closed)


def end_of(answer: Answer) -> str:
    """Return the token that stands behind an answer in a history: `<|return|>` never does."""
    return "<|call|>" if answer.calls else "<|end|>"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), Mapping)
    except (ValueError, RecursionError):
        return False
