"""The command this kit adds to `areal`.

Knows: its name. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal env`."""
    return [
        Command(
            name="env",
            target="areal_serving.environments.command:app",
            help="Create and list environments for inference engines.",
        ),
    ]
