"""What the report as text and the report as page have in common: orders, groups, sentences.

Knows: how rows are grouped and counted for a reader.
Does not know: markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from areal_conformance.check import Level
from areal_conformance.outcome import ALLOWED, DISTANCE, Outcome
from areal_conformance.run.record import Bound, Record, Row, Source

FOOTER = "A pass shows that no error was found, not that there is none."
LEVELS = ("static", "single", "distributed", "loop", "faults", "numbers")
ORDER = (
    Outcome.FAIL,
    Outcome.ERROR,
    Outcome.UNEXPECTED_PASS,
    Outcome.KNOWN_FAIL,
    Outcome.INCONCLUSIVE,
    Outcome.NOT_RUN,
    Outcome.PASS,
    Outcome.SKIP,
)
"""What a reader wants to see first."""


def title(record: Record) -> str:
    """Return the heading: role, name, and what makes the run another than the usual one."""
    subject = record.subject
    broken = f", deliberately broken: {subject.mutant}" if subject.mutant else ""
    ranks = f", {subject.ranks} ranks" if subject.ranks > 1 else ""
    device = f"{subject.device} stand-ins" if subject.stand_ins else subject.device
    return f"{subject.role} {subject.name} on {device}{ranks}, levels 0 to {subject.level}{broken}"


def areas(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows by area, in the order of their ids."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.id):
        found.setdefault(row.area, []).append(row)
    return found


def by_level(rows: Sequence[Row]) -> dict[int, Counter[Outcome]]:
    """Return how the checks of each level ended."""
    found: dict[int, Counter[Outcome]] = {}
    for row in rows:
        found.setdefault(row.level, Counter())[row.outcome] += 1
    return dict(sorted(found.items()))


def facts(record: Record) -> dict[str, str]:
    """Return what was checked with what, line by line."""
    subject = record.subject
    spoken = ", ".join(f"{role} {version}" for role, version in record.contract.items() if role in _roles(record))
    lines = {
        "origin": subject.origin,
        "written for contract": subject.contract,
        "contract": spoken,
        "suite": f"areal-conformance {record.suite}, areal-core {record.core}",
        DISTANCE: distance(record),
        "commit": record.git,
        **{f"files of {one.name}": _made_of(one) for one in record.sources},
        "started": record.started,
        "took": f"{record.seconds:.1f} s",
        "traits of models": ", ".join(record.traits),
        "seed": str(record.seed),
        "patience": f"{subject.patience:g}" if subject.patience != 1.0 else "",
        "user files": ", ".join(subject.imports),
        "command": record.command,
    }
    return {name: value for name, value in lines.items() if value}


def tables(record: Record) -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Return what stands below the checks: heading -> columns and rows; the first column holds names."""
    why = [(one, " ".join(filter(None, (one.condition, one.why, one.issue)))) for one in record.claims]
    bounds = {one.figure: one for one in record.bounds}
    return {
        "Figures": (
            ("figure", "value", "bounds", "check"),
            [(name, f"{value:.4g}", _bounds(bounds.get(name)), key) for key, name, value in figures(record)],
        ),
        "Profiles": (
            ("profile", "verdict", "checks"),
            [(one.name, one.verdict, one.line) for one in record.standings],
        ),
        "Claims": (
            ("ability", "counts here", "claimed", "why"),
            [(one.key, "yes" if one.counts else "no", one.support, said) for one, said in why],
        ),
        "Models": (
            ("family", "drawn for a check of the zoo"),
            [(one.name, str(one.drawn)) for one in record.families],
        ),
        "Tolerances of the adapter": (
            ("check", "atol", "rtol", "why"),
            [(one.check, f"{one.atol:g}", f"{one.rtol:g}", one.why) for one in record.tolerances],
        ),
        "Ledger": (
            ("check", "kind", "reason", "issue", "expires"),
            [(one.check, one.kind, one.reason, one.issue, one.expires) for one in record.ledger],
        ),
    }


def stand_ins(record: Record) -> str:
    """Return the sentence that has to stand beside the verdict where the device was not the real one."""
    said = record.subject.stand_ins
    return f"No {record.subject.device} computed any of this. {said}" if said else ""


def distance(record: Record) -> str:
    """Return how far a pair that learns is from the oracle, as the certificate measured it; empty where it was not."""
    told = [
        f"{row.numbers[DISTANCE]:.1e}, {row.numbers[ALLOWED]:.1e} allowed ({row.id})"
        for row in record.checks
        if DISTANCE in row.numbers and ALLOWED in row.numbers
    ]
    return "; ".join(told)


def figures(record: Record) -> list[tuple[str, str, float]]:
    """Return what level 5 measured: id of the check, name of the figure, value."""
    return [
        (row.id, name, value)
        for row in record.checks
        if row.level == Level.NUMBERS
        for name, value in row.numbers.items()
    ]


def _bounds(bound: Bound | None) -> str:
    if bound is None:
        return ""
    ends = (
        f"{bound.at_least:g} or more" if bound.at_least is not None else "",
        f"{bound.at_most:g} or less" if bound.at_most is not None else "",
    )
    return f"{' and '.join(filter(None, ends))} ({bound.by})"


def law_line(record: Record, number: int) -> str:
    """Return a law with its number, as every report writes it."""
    return f"law {number}: {record.laws.get(str(number), '')}"


def _made_of(source: Source) -> str:
    at = f", commit {source.commit}" if source.commit else ""
    return f"{source.files}{at}, sha256 {source.sha256}"


def _roles(record: Record) -> tuple[str, ...]:
    role = record.subject.role
    return (role,) if role in record.contract else ("train", "infer")
