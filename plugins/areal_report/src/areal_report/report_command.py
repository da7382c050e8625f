"""`areal report RUN`: write a run's page anew, while the run goes on or long after.

Knows: arguments, and how to tell whether a run goes on.
Does not know: what is on the page (`report`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_core.contract.errors import RunFolderError
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.discovery import discover
from areal_core.plugins.hooks import Hooks
from areal_report.history import History
from areal_report.journal import Journal
from areal_report.report import write_picture
from areal_report.run_report import write_html
from areal_report.summary import summarize


def report(
    run_folder: Path,
    *,
    out: Annotated[
        Path | None, Parameter(help="Write the page here, and no picture, instead of into the folder.")
    ] = None,
) -> int:
    """Write report.html and reward.png of a run from what it has recorded so far.

    Parameters
    ----------
    run_folder:
        The folder the run writes into, or wrote into.
    """
    files = RunFolder(run_folder)
    if not files.events.is_file() and not files.metrics.is_file():
        raise RunFolderError(
            f"{run_folder} holds no run",
            why="it has neither events.jsonl nor metrics.jsonl" if run_folder.is_dir() else "there is no such folder",
            fix="name the folder a run was started in: areal report runs/NAME",
        )
    history, journal = History.read(files.metrics), Journal.read(files.events)
    summary = summarize(history, journal, status="running" if files.live() else None)
    lines = [str(line) for line in Hooks(discover().hooks).collect("areal_report_lines", summary=summary)]
    path = write_html(files, history, journal, summary, lines, out)
    if out is None:
        write_picture(files.picture, history, journal)
    Console().print(str(path), highlight=False, markup=False, soft_wrap=True)
    return 0
