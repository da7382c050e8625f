"""What the self-test asserts, on results: a list of sentences, empty if the suite may be believed.

(a) every reference passes every check; (b) every mutant is killed by its declared killers, where only a `fail`
is a kill; (c) every check is a declared killer of some mutant; (d) the kill matrix equals the committed one;
(e) every row of the incidents has a mutant.

Knows: the rules.
Does not know: how results are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from areal_conformance.check import Check, Level
from areal_conformance.outcome import Outcome
from areal_proof.mutants import Mutant
from areal_proof.selftest.work import Ended, Item

FINE = (Outcome.PASS, Outcome.SKIP)


def reference_faults(ends: Iterable[Ended]) -> list[str]:
    """(a)."""
    return [
        f"(a) {end.item.label} does not pass {end.check}: {end.outcome}: {_short(end.message)}"
        for end in ends
        if not end.item.mutant and end.outcome not in FINE
    ]


def mutant_faults(mutants: Iterable[Mutant], ends: Iterable[Ended]) -> list[str]:
    """(b)."""
    found = {(end.item.mutant, end.check): end for end in ends if end.item.mutant}
    faults = []
    for mutant in mutants:
        if not mutant.killers:
            faults.append(f"(b) {mutant.name} declares no killer")
        for key in mutant.killers:
            end = found.get((mutant.name, key))
            if end is None:
                faults.append(f"(b) {mutant.name} declares {key}, which is no check of a {mutant.role}")
            elif end.outcome is not Outcome.FAIL:
                told = f": {_short(end.message)}" if end.message else ""
                faults.append(f"(b) {mutant.name} survives {key}: {end.outcome}{told}")
    return faults


def killerless(checks: Iterable[Check], mutants: Iterable[Mutant]) -> list[str]:
    """(c). Figures of level 5 are told and judge nobody."""
    killers = {key for mutant in mutants for key in mutant.killers}
    judging = [check for check in checks if check.level < Level.NUMBERS]
    return [f"(c) {check.id} kills no mutant" for check in judging if check.id not in killers]


def rowless(rows: Iterable[str], mutants: Iterable[Mutant]) -> list[str]:
    """(e)."""
    listed = tuple(mutants)
    known = tuple(rows)
    faults = [f"(e) no mutant stands for the incident {row}" for row in known if row not in {m.row for m in listed}]
    return faults + [
        f"(e) {m.name} names the row {m.row}, which is none" for m in listed if m.row and m.row not in known
    ]


def kills(ends: Iterable[Ended]) -> dict[str, set[str]]:
    """Return mutant -> the checks that failed on it."""
    found: dict[str, set[str]] = {}
    for end in ends:
        if end.item.mutant:
            found.setdefault(end.item.mutant, set())
            if end.outcome is Outcome.FAIL:
                found[end.item.mutant].add(end.check)
    return found


def killed(mutants: Sequence[Mutant], found: Mapping[str, set[str]]) -> list[str]:
    """Return the mutants that every one of their declared killers killed."""
    return [m.name for m in mutants if m.killers and set(m.killers) <= found.get(m.name, set())]


def passed(item: Item, ends: Iterable[Ended]) -> bool:
    """Tell whether an item ended as it must: a reference passes, a mutant's checks fail."""
    mine = {end.check: end.outcome for end in ends}
    if item.mutant:
        return bool(mine) and any(outcome is Outcome.FAIL for outcome in mine.values())
    return all(outcome in FINE for outcome in mine.values())


def _short(message: str) -> str:
    lines = [line for line in message.splitlines() if not line.startswith("law ")] or [""]
    return lines[0][:200]
