"""The commands this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal episodes` and `areal replay`."""
    return [
        Command(name="episodes", target="areal_episodes.show:episodes", help="Read the prompts and answers of a run."),
        Command(
            name="replay",
            target="areal_episodes.replay_command:replay_command",
            help="Train again on the episodes of a run, without generating.",
        ),
    ]
