"""The committed conformance reports are of checks there are, one folder per target, and their table lists them all."""

from __future__ import annotations

import json
from pathlib import Path

from tools.report_table import table

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "docs/conformance"


def test_no_report_is_of_a_check_that_is_gone() -> None:
    """A report of retired checks says nothing about the backend of today."""
    pinned = set(json.loads((ROOT / "conformance/src/areal_conformance/inventory.json").read_text())["checks"])

    gone = {
        path.parent.name: sorted({check["id"] for check in json.loads(path.read_text())["checks"]} - pinned)
        for path in REPORTS.glob("*/*/report.json")
    }
    assert {name: ids for name, ids in gone.items() if ids} == {}


def test_a_target_has_one_report_and_the_table_lists_it() -> None:
    """`python tools/report_table.py docs/conformance` was run after the last report."""
    names = [path.parent.name for path in REPORTS.glob("*/*/report.json")]

    assert (len(names), (REPORTS / "index.md").read_text()) == (len(set(names)), table(REPORTS))
