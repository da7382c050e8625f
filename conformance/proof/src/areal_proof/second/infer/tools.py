"""Tool calls as Hermes models write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

Knows: where a call begins and ends, and what one holds.
Does not know: which tools there are, or what they do.
"""

from __future__ import annotations

import json
import re

from areal_core.contract.errors import CapabilityError
from areal_core.contract.optional import ToolCall, ToolParse

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def parse(parser: str, text: str) -> ToolParse:
    """Return the calls in order and the text before the first; a text with a broken call is content as a whole.

    Raises:
        CapabilityError: no parser is named.
    """
    if not parser:
        raise CapabilityError(
            "tool calls cannot be read",
            why="the options name no parser, and models write calls in different ways",
            fix="set rollout.options.tool_parser=hermes",
        )
    bodies = _CALL.findall(text)
    try:
        calls = tuple(_call(body) for body in bodies)
    except (ValueError, KeyError, TypeError):
        calls = ()
    return ToolParse(content=text[: text.index("<tool_call>")].strip() if calls else text, calls=calls)


def _call(body: str) -> ToolCall:
    found = json.loads(body)
    return ToolCall(name=str(found["name"]), arguments=json.dumps(dict(found["arguments"])))
