"""Two reports side by side: what got better, what got worse, what came and went.

Knows: which outcome is worse than which.
Does not know: how a report is made.
"""

from __future__ import annotations

from attrs import frozen

from areal_conformance.outcome import Outcome
from areal_conformance.report.parts import title
from areal_conformance.run.record import Record

_RANKS = {
    Outcome.PASS: 0,
    Outcome.SKIP: 1,
    Outcome.KNOWN_FAIL: 2,
    Outcome.INCONCLUSIVE: 3,
    Outcome.NOT_RUN: 4,
    Outcome.UNEXPECTED_PASS: 5,
    Outcome.ERROR: 6,
    Outcome.FAIL: 6,
}


@frozen(kw_only=True)
class Comparison:
    """What is different in the second report. Each change is `(check, before, after)`."""

    worse: tuple[tuple[str, str, str], ...]
    better: tuple[tuple[str, str, str], ...]
    other: tuple[str, ...]
    """Checks that came or went, claims and versions that changed."""


def compare(before: Record, after: Record) -> Comparison:
    """Compare two reports."""
    old, new = ({row.id: row for row in record.checks} for record in (before, after))
    worse, better = [], []
    for key in sorted(old.keys() & new.keys()):
        change = (key, str(old[key].outcome), str(new[key].outcome))
        step = _RANKS[new[key].outcome] - _RANKS[old[key].outcome]
        if step > 0:
            worse.append(change)
        elif step < 0:
            better.append(change)
        elif change[1] != change[2]:
            worse.append(change)
    other = [f"+ {key}: {new[key].outcome}" for key in sorted(new.keys() - old.keys())]
    other += [f"- {key}: was {old[key].outcome}" for key in sorted(old.keys() - new.keys())]
    claims = ({one.key: one.counts for one in record.claims} for record in (before, after))
    other += _changes("claim", *({key: "yes" if counts else "no" for key, counts in one.items()} for one in claims))
    other += _changes("version of", before.versions, after.versions)
    return Comparison(worse=tuple(worse), better=tuple(better), other=tuple(other))


def text(before: Record, after: Record, found: Comparison) -> str:
    """Return the comparison as plain lines."""
    lines = [f"before: {title(before)}: {before.verdict}", f"after:  {title(after)}: {after.verdict}"]
    for name, changes in (("worse", found.worse), ("better", found.better)):
        lines += [f"{name}: {check}: {was} -> {now}" for check, was, now in changes]
    lines += found.other
    if len(lines) == 2:
        lines.append("no check, claim or version is different")
    return "\n".join(lines) + "\n"


def _changes(what: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    return [
        f"~ {what} {key}: {old.get(key, 'none')} -> {new.get(key, 'none')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
