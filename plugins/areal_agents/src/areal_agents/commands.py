"""The command this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal serve`."""
    return [
        Command(
            name="serve",
            target="areal_agents.serve.command:serve_command",
            help="Serve a policy that learns from the sessions it serves.",
        )
    ]
