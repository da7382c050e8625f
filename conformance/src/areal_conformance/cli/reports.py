"""Commands on finished reports: `areal conformance compare`, `verify` and `site`, and `ledger suggest`.

Knows: exit codes, and which rows of a report want an entry in conformance.toml.
Does not know: what is compared (`report.compare`), what a hash is over (`report.seal`), the rules of a ledger.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from areal_conformance.outcome import Outcome
from areal_conformance.report.compare import compare, text
from areal_conformance.report.parts import title
from areal_conformance.report.seal import look_at
from areal_conformance.report.site import write_site
from areal_conformance.run.ledger import suggestion
from areal_conformance.run.record import read_record

DAYS = 90
"""Until a proposed entry expires."""


def compare_reports(before: Path, after: Path) -> int:
    """Compare two reports: outcomes, claims, versions, files, numbers.

    Exit codes: 0 nothing got worse, 1 something did.

    Args:
        before: A report.json, or its folder.
        after: Another.
    """
    old, new = read_record(before), read_record(after)
    found = compare(old, new)
    print(text(old, new, found), end="")
    return 1 if found.worse else 0


def verify(report: Path, *, sha256: str = "") -> int:
    """Say whether a report is as it was written, about the present contract, and of all checks of this suite.

    Exit codes: 0 it holds, 1 it was changed or says what its checks do not, 3 it holds and is overtaken: by a newer
    contract, or by checks that came since.

    Args:
        report: A report.json, or its folder.
        sha256: The hash its author published: another one is a failure too.
    """
    seal = look_at(report)
    faults = list(seal.faults)
    if sha256 and sha256.lower() != seal.sha256:
        faults.append(f"the hash given is {sha256}, that of its content {seal.sha256}")
    print(f"{title(seal.record)}: {seal.record.verdict}")
    print(f"sha256 {seal.sha256}")
    for source in seal.record.sources:
        told = " ".join(filter(None, (source.name, source.version, source.commit and f"commit {source.commit}")))
        print(f"about {told}: {source.files} files, sha256 {source.sha256}")
    for fault in faults:
        print(f"does not hold: {fault}")
    if seal.expired:
        print(f"expired: {seal.expired}")
    if seal.outdated:
        print(f"outdated: {seal.outdated}")
    overtaken = seal.expired or seal.outdated
    if not faults and not overtaken:
        print("holds")
    return 1 if faults else 3 if overtaken else 0


def site(folder: Path, *, out: Path) -> int:
    """Write a static site of every report.json below a folder: one page to compare them, and a page for each.

    Args:
        folder: Where the reports are.
        out: The folder of the site.
    """
    first, count = write_site(folder, out)
    print(f"written: {first}, {count} reports")
    return 0


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
