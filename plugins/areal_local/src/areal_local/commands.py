"""What this plugin adds to `areal`: commands, and a watch over the event loop of a run.

Knows: their names. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from pathlib import Path

from areal_core.plugins.hooks import Command, MetricSink, hookimpl


@hookimpl
def areal_metric_sinks(run_folder: Path) -> list[MetricSink]:
    """Watch the event loop for as long as a run has metrics."""
    from areal_local.loop_watch import watch_run

    return [watch_run(run_folder)]


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
