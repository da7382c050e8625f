"""What areal-core asks of this plugin: a run shown while it goes on, and the files it leaves for people.

Knows: which of this plugin's parts answer.
Does not know: how any of it is drawn (`progress`, `report`, `curve`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

from rich.console import Console

from areal_core.observe.jsonl import read_lines
from areal_core.plugins.extensions import RunFiles, RunView

_ENGINES = ("torch", "transformers", "tensordict")


class Report:
    """Satisfies `areal_core.plugins.extensions.RunReport`; imports what draws only when it draws."""

    def view(self, steps: int, *, title: str, console: Console) -> AbstractContextManager[RunView]:
        """Return the live picture of a run of so many steps."""
        from areal_report.progress import Progress

        return Progress(steps, title=title, console=console)

    def write(
        self,
        files: RunFiles,
        *,
        facts: Mapping[str, Any],
        lines: Callable[[Mapping[str, Any]], Sequence[str]],
        tell: Callable[..., None],
    ) -> Mapping[str, Any]:
        """Write summary.json, report.html and reward.png; return the summary. Any: plain data."""
        from areal_report.report import write_picture, write_report
        from areal_report.summary import summarize, write_summary

        records = list(read_lines(files.metrics)) if files.metrics.exists() else []
        happened = list(read_lines(files.events))
        title, planned = facts["title"], {name: fact for name, fact in facts.items() if name != "title"}
        summary = summarize(records, happened, **planned)
        write_summary(files.summary, summary)
        write_report(
            files.report,
            title=title,
            summary=summary,
            records=records,
            events=happened,
            plan="\n".join(lines(summary)),
            versions=_versions(),
            config=files.config.read_text(),
        )
        write_picture(files.picture, records, happened, tell)
        return summary

    def curve(self, files: RunFiles) -> str:
        """Return the reward and the evaluations over the steps, drawn for a terminal; empty without a step."""
        from areal_report.curve import draw_curve
        from areal_report.summary import evaluation_points, reward_points

        records, happened = list(read_lines(files.metrics)), list(read_lines(files.events))
        if not records:
            return ""
        marks = evaluation_points(records, happened)
        return draw_curve(reward_points(records), marks=marks, title="reward, and evaluation (marked)")


def _versions() -> dict[str, str]:
    """Return the versions of the interpreter, of everything of ours that is installed, and of the engines' parts."""
    found = {"python": platform.python_version(), "machine": platform.platform()}
    ours = {name for each in metadata.distributions() if (name := each.metadata["Name"] or "").startswith("areal-")}
    for name in (*sorted(ours), *_ENGINES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


REPORT = Report()
