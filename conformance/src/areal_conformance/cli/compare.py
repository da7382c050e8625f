"""`areal conformance compare A.json B.json`.

Knows: exit codes.
Does not know: what is compared (`report.compare`).
"""

from __future__ import annotations

from pathlib import Path

from areal_conformance.report.compare import compare, text
from areal_conformance.run.record import read_record


def compare_reports(before: Path, after: Path) -> int:
    """Compare two reports. Exit codes: 0 nothing got worse, 1 something did.

    Args:
        before: A report.json, or its folder.
        after: Another.
    """
    old, new = read_record(before), read_record(after)
    found = compare(old, new)
    print(text(old, new, found), end="")
    return 1 if found.worse else 0
