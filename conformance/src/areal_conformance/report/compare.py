"""Two reports side by side: what got better, what got worse, what came and went, what is measured otherwise.

Worse is also a check that is new and does not pass, and one that passed and is owed no more by the same run.

Knows: which outcome is worse than which.
Does not know: how a report is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from areal_conformance.outcome import Outcome
from areal_conformance.report.parts import title
from areal_conformance.run.record import Record, Row, Source

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


_FINE = (Outcome.PASS, Outcome.SKIP)
NONE = "none"
"""In the place of the outcome of a check that a report does not have."""
MUCH = 1.5
"""By what factor a measured value has to change to be told."""


@frozen(kw_only=True)
class Comparison:
    """What is different in the second report. Each change is `(check, before, after)`."""

    worse: tuple[tuple[str, str, str], ...]
    better: tuple[tuple[str, str, str], ...]
    other: tuple[str, ...]
    """Checks that came or went, claims, versions, files and numbers that changed."""


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
    came, went = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    worse += [(key, NONE, str(new[key].outcome)) for key in came if new[key].outcome not in _FINE]
    lost = [key for key in went if old[key].outcome is Outcome.PASS] if _asks_no_less(before, after) else []
    worse += [(key, str(Outcome.PASS), NONE) for key in lost]
    other = [f"+ {key}: {new[key].outcome}" for key in came if new[key].outcome in _FINE]
    other += [f"- {key}: was {old[key].outcome}" for key in went if key not in lost]
    claims = ({one.key: one.counts for one in record.claims} for record in (before, after))
    other += _changes("claim", *({key: "yes" if counts else "no" for key, counts in one.items()} for one in claims))
    other += _changes("version of", before.versions, after.versions)
    other += _changes("contract of", before.contract, after.contract)
    made_of = ({one.name: _made_of(one) for one in record.sources} for record in (before, after))
    other += _changes("files of", *made_of)
    other += _numbers(old, new)
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


def _asks_no_less(before: Record, after: Record) -> bool:
    """Whether the second run owes whatever the first one did, as far as the suite has it."""
    old, new = before.subject, after.subject
    alike = (before.suite, before.contract) == (after.suite, after.contract)
    return alike and new.level >= old.level and new.ranks >= old.ranks


def _made_of(source: Source) -> str:
    return " ".join(filter(None, (source.version, source.commit, source.sha256[:12])))


def _numbers(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[str]:
    """Return the measured values that are half as large again as before, or that much smaller."""
    told = []
    for key in sorted(old.keys() & new.keys()):
        for name in sorted(old[key].numbers.keys() & new[key].numbers.keys()):
            was, now = old[key].numbers[name], new[key].numbers[name]
            if max(abs(was), abs(now)) > MUCH * min(abs(was), abs(now)):
                told.append(f"~ number {key} {name}: {was:.4g} -> {now:.4g}")
    return told


def _changes(what: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    return [
        f"~ {what} {key}: {old.get(key, 'none')} -> {new.get(key, 'none')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
