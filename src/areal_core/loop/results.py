"""What a run leaves behind for people, written by whoever offers the extension `report`.

Knows: the facts of a plan that belong beside the records.
Does not know: what is written or drawn; without the extension metrics.jsonl and events.jsonl are all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_core.config.plan import Plan
from areal_core.config.plan_text import describe_plan
from areal_core.loop.run_folder import RunFolder
from areal_core.observe.events import EventLog
from areal_core.plugins.extensions import RunReport, extension


def write_results(
    folder: RunFolder,
    plan: Plan,
    events: EventLog,
    status: str,
    more_lines: Callable[[Mapping[str, Any]], list[str]] = lambda _summary: [],
) -> Mapping[str, Any]:
    """Have the report written from what was recorded so far; return the summary, empty without a report.

    Called once when a run ends, however it ends. `more_lines` are what plugins add to the page. Any: plain data.
    """
    report: RunReport | None = extension("report")
    if report is None:
        return {}
    facts = {
        "title": plan.config.name,
        "status": status,
        "max_staleness": plan.config.rollout.max_staleness,
        "train_backend": str(plan.role("actor").backend),
        "infer_backend": str(plan.role("rollout").backend),
    }

    def lines(summary: Mapping[str, Any]) -> Sequence[str]:
        return [describe_plan(plan), *more_lines(summary)]

    return report.write(folder, facts=facts, lines=lines, tell=events.write)
