"""vLLM's parsers of tool calls, run on a whole output.

Knows: vLLM's parser registry and the request object its parsers look at.
Does not know: HTTP, or what is done with a call.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any


def parse(tokenizer: Any, parser: str, text: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return {"content": str, "calls": [{"name": str, "arguments": JSON text}]}. Any: vLLM's tokenizer, JSON.

    Raises:
        KeyError: vLLM has no parser of that name.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest(messages=[{"role": "user", "content": "-"}], model="-", tools=list(tools) or None)
    found = _parser(parser)(tokenizer, request.tools).extract_tool_calls(text, request)
    if not found.tools_called or not all(_is_object(call.function.arguments) for call in found.tool_calls):
        return {"content": text, "calls": []}
    calls = [{"name": call.function.name, "arguments": call.function.arguments} for call in found.tool_calls]
    return {"content": found.content or "", "calls": calls}


@functools.cache
def _parser(name: str) -> Any:
    from vllm.tool_parsers import ToolParserManager

    return ToolParserManager.get_tool_parser(name)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
