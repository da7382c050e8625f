"""The commands this plugin adds to `areal`.

Knows: their names. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal backends`, `areal doctor` and `areal scale`."""
    return [
        Command(
            name="backends",
            target="areal_local.backends:backends",
            help="List installed plugins and what they support.",
        ),
        Command(
            name="doctor",
            target="areal_local.doctor.command:doctor",
            help="Examine this machine and the plugins on it.",
        ),
        Command(
            name="scale",
            target="areal_local.scale.command:scale",
            help="Change the number of inference replicas of a live run.",
        ),
    ]
