"""What served engines refuse in the same words.

Knows: which option turns an ability on.
Does not know: what the ability does.
"""

from __future__ import annotations

from areal_core.contract.errors import CapabilityError


def refuse_tool_calls(parser: str, examples: str) -> None:
    """Refuse to read tool calls where `rollout.options.tool_parser` is "".

    Raises:
        CapabilityError: it is; `examples` are names it may have.
    """
    if not parser:
        raise CapabilityError(
            "tool calls cannot be read",
            why="rollout.options.tool_parser names no parser",
            fix=f"name the one of the model, for example {examples}",
        )
