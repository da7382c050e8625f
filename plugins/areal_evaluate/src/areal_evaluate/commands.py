"""The command this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal evaluate`."""
    return [
        Command(
            name="evaluate",
            target="areal_evaluate.command:evaluate_command",
            help="Score a model on benchmarks: avg@k, pass@k, confidence intervals.",
        )
    ]
