"""`areal conformance ledger suggest REPORT`: a patch for conformance.toml.

Knows: which rows of a report want an entry.
Does not know: the rules of a ledger (`ledger`).
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from areal_conformance.outcome import Outcome
from areal_conformance.run.ledger import suggestion
from areal_conformance.run.record import read_record

DAYS = 90
"""Until a proposed entry expires."""


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
