"""The page that lists committed reports: `python tools/report_table.py docs/conformance`.

Knows: report.json files in a folder, and what one line says of each.
Does not know: how they were made.
"""

from __future__ import annotations

import sys
from pathlib import Path

from areal_conformance.run.record import Record, read_record

HEADER = """# Conformance reports

Unmodified reports on the backends in this repository. Every report names the command that made it, the
versions and the machine; `make conformance` runs all of them. A report is about the version of the contract it
names: `areal conformance verify` says whether that is the present one; `areal conformance site` compares them all.
[How conformance is judged](../explanation/conformance.md) · [Certify a backend](../tutorial/certify-a-backend.md)

| target | device | levels | contract | verdict | | report |
|---|---|---|---|---|---|---|
"""


def table(folder: Path) -> str:
    """Return the page for every `report.json` below a folder, in the order of their paths."""
    return HEADER + "".join(
        _line(read_record(path), path.relative_to(folder).parent) for path in sorted(folder.rglob("report.json"))
    )


def _line(record: Record, where: Path) -> str:
    subject = record.subject
    name = f"{subject.role} {subject.name}" + (f", {subject.ranks} ranks" if subject.ranks > 1 else "")
    device = f"{subject.device} stand-ins" if subject.stand_ins else subject.device
    role = "train" if subject.role == "pair" else subject.role
    return (
        f"| {name} | {device} | 0 to {subject.level} | {record.contract[role]} | {record.verdict} | {record.line} "
        f"| [read]({where.as_posix()}/report.md) |\n"
    )


def main() -> None:
    """Write `index.md` into the folder named on the command line."""
    folder = Path(sys.argv[1])
    (folder / "index.md").write_text(table(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
