"""The command this plugin adds to `areal`.

Knows: its name. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal quickstart`."""
    return [
        Command(
            name="quickstart",
            target="areal_tasks.quickstart.quickstart:quickstart",
            help="Train a small model on this machine, now.",
        ),
    ]
