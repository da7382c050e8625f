"""Reports of a run, all rendered from its record and nothing else.

Knows: which files there are.
Does not know: how a run is made.
"""

from __future__ import annotations

from pathlib import Path

from areal_conformance.report.markdown import markdown
from areal_conformance.report.page import page
from areal_conformance.run.record import Record, to_json, write_text


def write_reports(record: Record, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.md and report.html; the last two from the first.

    Raises:
        StorageError: one cannot be written.
    """
    files = {"report.json": to_json(record), "report.md": markdown(record), "report.html": page(record)}
    for name, text in files.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in files)
