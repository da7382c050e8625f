"""The page that lists committed reports: `python tools/report_table.py docs/conformance`.

Knows: report.json files in a folder, and what one line says of each: also what it is worth today (`report.seal`).
Does not know: how they were made.
"""

from __future__ import annotations

import sys
from pathlib import Path

from areal_conformance.report.seal import Seal, look_at

HEADER = """# Conformance reports

Unmodified reports on the backends in this repository. Every report names the command that made it, the
versions and the machine; `make conformance` runs all of them. A verdict is about the contract and the suite of its day.
What it is worth today stands beside it, as `areal conformance verify` says it:

- `current`: on the present contract, with every check that this suite has for such a run.
- `expired`: its role has a newer contract. `outdated`: this suite has checks that it lacks. It may still be right, but
  nobody has looked.
- `unsealed`: it has no hash over its content, as the suite of its day made none; nothing shows that it is as it was
  written.

[What makes a report current](../how-to/publish-a-report.md#whether-it-still-holds) ·
`areal conformance site` compares them all.
[How conformance is judged](../explanation/conformance.md) · [Certify a backend](../tutorial/certify-a-backend.md)

| target | device | levels | contract | verdict | stands | | report |
|---|---|---|---|---|---|---|---|
"""


def table(folder: Path) -> str:
    """Return the page for every `report.json` below a folder, in the order of their paths."""
    return HEADER + "".join(
        _line(look_at(path), path.relative_to(folder).parent) for path in sorted(folder.rglob("report.json"))
    )


def _line(seal: Seal, where: Path) -> str:
    record = seal.record
    subject = record.subject
    name = f"{subject.role} {subject.name}" + (f", {subject.ranks} ranks" if subject.ranks > 1 else "")
    device = f"{subject.device} stand-ins" if subject.stand_ins else subject.device
    role = "train" if subject.role == "pair" else subject.role
    return (
        f"| {name} | {device} | 0 to {subject.level} | {record.contract[role]} | {record.verdict} | {seal.standing} "
        f"| {record.line} | [read]({where.as_posix()}/report.md) |\n"
    )


def main() -> None:
    """Write `index.md` into the folder named on the command line."""
    folder = Path(sys.argv[1])
    (folder / "index.md").write_text(table(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
