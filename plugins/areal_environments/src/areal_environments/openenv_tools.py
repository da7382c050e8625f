"""Environments of OpenEnv that are tools: what they list is what the policy may call, and a call is a step.

Knows: how tools are listed and called over a session, and what of a result is told.
Does not know: conversations, or rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from areal_core.contract.errors import EpisodeFailed
from areal_environments.openenv_session import Json, Session


async def list_tools(session: Session) -> list[Json]:
    """Return the environment's tools as chat completions have them.

    Raises:
        EpisodeFailed: it has none.
    """
    seen = await session.told("step", {"type": "list_tools"})
    listed = (seen.get("observation") or {}).get("tools")
    if not listed:
        raise EpisodeFailed(
            "the environment lists no tools",
            why=str(seen.get("refused") or seen.get("observation"))[:300],
            fix="leave rollout.workflow.options.tools out if it takes actions of its own",
        )
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
            },
        }
        for tool in listed
    ]


async def call_tool(session: Session, function: Mapping[str, Any], tools: Sequence[Json]) -> tuple[Json, str]:
    """Make a call; return the step, and what the policy is told of it. What is wrong with a call is told as well.

    Any: JSON.
    """
    names = [tool["function"]["name"] for tool in tools]
    if function["name"] not in names:
        return {}, f"there is no tool {function['name']}; there are {', '.join(names)}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return {}, f"the arguments are no JSON: {error}"
    seen = await session.told("step", {"type": "call_tool", "tool_name": function["name"], "arguments": arguments})
    return seen, _told(seen)


def _told(seen: Json) -> str:
    if "refused" in seen:
        return str(seen["refused"])
    observed = seen.get("observation") or {}
    if error := observed.get("error"):
        return f"{error.get('error_type')}: {error.get('message')}"
    result = observed.get("result")
    texts = [part.get("text") for part in result.get("content") or ()] if isinstance(result, dict) else []
    if texts and None not in texts:
        return "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result)
