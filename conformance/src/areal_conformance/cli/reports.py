"""Commands on finished reports: `areal conformance compare A.json B.json`, and `ledger suggest REPORT`.

Knows: exit codes, and which rows of a report want an entry in conformance.toml.
Does not know: what is compared (`report.compare`), or the rules of a ledger (`run.ledger`).
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from areal_conformance.outcome import Outcome
from areal_conformance.report.compare import compare, text
from areal_conformance.run.ledger import suggestion
from areal_conformance.run.record import read_record

DAYS = 90
"""Until a proposed entry expires."""


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


def suggest(report: Path) -> int:
    """Propose entries for what failed; append what you mean to keep to conformance.toml.

    Args:
        report: A report.json, or its folder.
    """
    record = read_record(report)
    failures = [(row.id, row.message) for row in record.checks if row.outcome is Outcome.FAIL]
    stale = [row.id for row in record.checks if row.outcome is Outcome.UNEXPECTED_PASS]
    if not failures and not stale:
        print("# nothing failed: no entry is needed")
        return 0
    print(suggestion(failures, stale, date.today() + timedelta(days=DAYS)), end="")
    return 0
