"""What served engines refuse in the same words.

Knows: which option turns an ability on, which axes a server can be cut along.
Does not know: what the ability does.
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_core.config.backend import AXES
from areal_core.contract.errors import CapabilityError


def refuse_axes(layout: Mapping[str, int], axes: str, engine: str) -> None:
    """Refuse a layout that cuts one replica along other axes than these letters.

    Raises:
        CapabilityError: names the axes.
    """
    if others := [AXES.get(axis, axis) for axis, degree in layout.items() if degree > 1 and axis not in f"d{axes}"]:
        raise CapabilityError(
            f"layout {dict(layout)} cuts a replica along {', '.join(others)}",
            why=f"servers of {engine} are cut along {', '.join(f'{axis} ({AXES[axis]})' for axis in axes)}",
            fix="set rollout.backend to a layout of those axes",
        )


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
