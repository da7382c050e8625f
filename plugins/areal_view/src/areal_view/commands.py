"""The commands this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal view` and `areal trace`."""
    return [
        Command(name="view", target="areal_view.view:view", help="Look at runs in the browser, also while they go on."),
        Command(name="trace", target="areal_view.trace:trace", help="Write a run's timeline for Perfetto."),
    ]
