"""What areal-core asks of this plugin: a run shown while it goes on, and the files it leaves for people.

Knows: which of this plugin's parts answer.
Does not know: how any of it is drawn (`progress`, `report`, `curve`).
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from areal_core.plugins.extensions import RunFiles, RunView
from areal_report.history import History
from areal_report.journal import Journal

_ENGINES = ("torch", "transformers", "tensordict")


class Report:
    """Satisfies `areal_core.plugins.extensions.RunReport`; imports what draws only when it draws."""

    def view(self, steps: int, *, title: str, folder: Path, console: Console) -> AbstractContextManager[RunView]:
        """Return the live picture of a run of so many steps."""
        from areal_report.progress import Progress

        return Progress(steps, title=title, folder=folder, console=console)

    def write(
        self,
        files: RunFiles,
        *,
        status: str,
        lines: Callable[[Mapping[str, Any]], Sequence[str]],
        tell: Callable[..., None],
    ) -> Mapping[str, Any]:
        """Write summary.json, report.html and reward.png; return the summary. Any: plain data."""
        from areal_report.report import write_picture
        from areal_report.summary import summarize, write_summary

        history, journal = History.read(files.metrics), Journal.read(files.events)
        summary = summarize(history, journal, status=status)
        write_summary(files.summary, summary)
        write_html(files, history, journal, summary, lines(summary))
        write_picture(files.picture, history, journal, tell)
        return summary

    def closing(self, files: RunFiles) -> str:
        """Return the smoothed reward and the evaluations over the steps, what was lost, and where the files are."""
        from areal_report.curve import draw_curve
        from areal_report.summary import evaluation_points, reward_points, smoothed

        history, journal = History.read(files.metrics), Journal.read(files.events)
        shown = []
        if history.last:
            points, steps = smoothed(reward_points(history))
            marks = evaluation_points(history, journal)
            title = f"{history.headline}, mean of {steps * history.stride} steps" + (
                ", and evaluation (◆)" if marks else ""
            )
            shown = [draw_curve(points, marks=marks, title=title), _losses(journal)]
        paths = {"report": files.report, "picture": files.picture, "summary": files.summary}
        return "\n".join([*shown, *(f"{name:8}{path}" for name, path in paths.items())])


def write_html(
    files: RunFiles,
    history: History,
    journal: Journal,
    summary: Mapping[str, Any],
    lines: Sequence[str],
    out: Path | None = None,
) -> Path:
    """Write the page of a run into its folder, or to `out`; return where. Any: as `summarize` gives it."""
    from areal_core.loop.run_folder import RunFolder
    from areal_report.completions import last_completions
    from areal_report.report import Page, write_page
    from areal_report.traces import traces_of

    config = files.config.read_text() if files.config.is_file() else ""
    named = re.search(r"^name: *(\S.*)$", config, re.MULTILINE)  # runs from before events said it
    page = Page(
        title=str(journal.started.get("name") or (named[1] if named else files.root.name)),
        summary=summary,
        history=history,
        journal=journal,
        completions=last_completions(files.root),
        resumable=str(files.root) if RunFolder(files.root).how_to_go_on() else None,
        traces=traces_of(files.root),
        plan="\n".join(part for part in (str(journal.started.get("plan", "")), *lines) if part),
        versions=_versions(),
        config=config,
        written=time.time(),
    )
    write_page(out or files.report, page)
    return out or files.report


def _losses(journal: Journal) -> str:
    counted = journal.prompts
    prompts = [f"prompts lost {counted.lost}", f"trained twice {counted.twice}"] if counted else []
    return ", ".join([*prompts, f"episodes failed {journal.num_failed}", f"restarts {journal.restarts}"])


def _versions() -> dict[str, str]:
    """Return the versions of the interpreter, of everything of ours that is installed, and of the engines' parts."""
    found = {"python": platform.python_version(), "machine": platform.platform()}
    folders = [folder for path in sys.path for folder in Path(path).glob("areal_*.dist-info")]  # to read all takes long
    ours = {folder.name.partition("-")[0].replace("_", "-") for folder in folders}
    for name in (*sorted(ours), *_ENGINES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


REPORT = Report()
