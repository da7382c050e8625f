"""The command this plugin adds to `areal`.

Knows: its name. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal doctor`."""
    return [
        Command(
            name="doctor",
            target="areal_local.doctor.command:doctor",
            help="Examine this machine and the plugins on it.",
        ),
    ]
