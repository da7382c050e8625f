"""What this plugin adds to `areal`: commands.

Knows: their names. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add the commands of runs on many machines."""
    return []
