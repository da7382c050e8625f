"""The command this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal algorithms`."""
    return [
        Command(
            name="algorithms",
            target="areal_algorithms.show:algorithms",
            help="List published algorithms, or show what one of them sets.",
        )
    ]
