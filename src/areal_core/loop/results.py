"""What a run leaves behind for people: summary.json, report.html, reward.png.

Knows: where the records are, and what belongs on the page besides them.
Does not know: how any of it is drawn (`areal_core.observe`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from areal_core.config.plan import Plan
from areal_core.config.plan_text import describe_plan
from areal_core.loop.run_folder import RunFolder
from areal_core.observe.events import EventLog, read_events
from areal_core.observe.metrics import read_metrics
from areal_core.observe.report import write_picture, write_report
from areal_core.observe.summary import summarize, write_summary

_PACKAGES = ("areal-core", "areal-reference", "areal-fsdp", "torch", "transformers", "tensordict")


def write_results(
    folder: RunFolder,
    plan: Plan,
    events: EventLog,
    status: str,
    more_lines: Callable[[Mapping[str, Any]], list[str]] = lambda _summary: [],
) -> Mapping[str, Any]:
    """Write the three files from what was recorded so far; return the summary. Any: as `summary.json`.

    Called once when a run ends, however it ends. `more_lines` are what plugins add to the page.
    """
    records = list(read_metrics(folder.metrics)) if folder.metrics.exists() else []
    happened = list(read_events(folder.events))
    summary = summarize(
        records,
        happened,
        status=status,
        max_staleness=plan.config.rollout.max_staleness,
        train_backend=str(plan.role("actor").backend),
        infer_backend=str(plan.role("rollout").backend),
    )
    write_summary(folder.summary, summary)
    write_report(
        folder.report,
        title=plan.config.name,
        summary=summary,
        records=records,
        events=happened,
        plan="\n".join([describe_plan(plan), *more_lines(summary)]),
        versions=_versions(),
        config=folder.config.read_text(),
    )
    write_picture(folder.picture, records, happened, events)
    return summary


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
