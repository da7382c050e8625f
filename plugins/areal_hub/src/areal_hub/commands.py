"""The command this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal push`."""
    return [
        Command(name="push", target="areal_hub.command:push_command", help="Upload a trained model with a model card.")
    ]
