"""The command this kit adds to `areal`.

Knows: its name. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal convert`."""
    return [
        Command(
            name="convert",
            target="areal_torch.conversion.command:convert",
            help="Convert a checkpoint between formats, comparing every tensor.",
        ),
    ]
