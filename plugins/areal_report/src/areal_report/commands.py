"""The commands this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal report` and `areal explain`."""
    summary = "Write the page of a run, also while it goes on."
    return [
        Command(name="report", target="areal_report.report_command:report", help=summary),
        Command(
            name="explain",
            target="areal_report.glossary.explain:explain",
            help="Say what a metric of a run means, what is healthy, what to do.",
        ),
    ]
