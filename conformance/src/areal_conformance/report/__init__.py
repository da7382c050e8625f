"""Reports of a run, all rendered from its record and nothing else.

Knows: which files there are.
Does not know: how a run is made.
"""

from __future__ import annotations

from pathlib import Path

from areal_conformance.report.badge import badge
from areal_conformance.report.markdown import markdown
from areal_conformance.report.page import page
from areal_conformance.report.seal import sealed
from areal_conformance.run.record import Record, write_text


def write_reports(record: Record, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.md, report.html and badge.svg; the last three from the first.

    Raises:
        StorageError: one cannot be written.
    """
    files = {
        "report.json": sealed(record),
        "report.md": markdown(record),
        "report.html": page(record),
        "badge.svg": badge(record),
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in files)
