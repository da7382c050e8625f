"""What the self-test has to do, in pieces a process can take, and what comes of each.

Knows: which pieces there are.
Does not know: who does them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from areal_conformance.check import Check, Level
from areal_conformance.outcome import Outcome
from areal_conformance.target import Locator
from areal_proof.mutants import Mutant

CHUNK = 40
"""Checks of a reference in one piece: enough to share what is dear to start, few enough to spread."""


@frozen(kw_only=True)
class Item:
    """Some checks on one target: a mutant, or a reference where `mutant` is empty."""

    role: str
    name: str
    ranks: int
    checks: tuple[str, ...] = field(converter=tuple[str, ...])
    mutant: str = ""

    @property
    def label(self) -> str:
        """Return how a person knows it."""
        return self.mutant or f"{self.role}/{self.name}"


@frozen(kw_only=True)
class Ended:
    """How one check of an item ended."""

    item: Item
    check: str
    outcome: Outcome = field(converter=Outcome)
    message: str = ""
    seconds: float = 0.0


def reference_items(locators: Iterable[Locator], checks: Mapping[str, Iterable[Check]]) -> list[Item]:
    """Return the pieces of the references; `checks` are those of each role, in order."""
    items = []
    for locator in locators:
        mine = [check.id for check in checks.get(locator.role, ()) if in_reach(check, locator.ranks)]
        for start in range(0, len(mine), CHUNK):
            piece = mine[start : start + CHUNK]
            items.append(Item(role=locator.role, name=locator.name, ranks=locator.ranks, checks=tuple(piece)))
    return items


def mutant_items(mutants: Iterable[Mutant], checks: Mapping[str, Iterable[Check]], *, full: bool = False) -> list[Item]:
    """Return one piece a mutant: its declared killers, or every check of its role."""
    items = []
    for mutant in mutants:
        role, _, name = mutant.of.partition("/")
        known = {check.id: check for check in checks.get(role, ())}
        wanted = [key for key in mutant.killers if key in known]
        if full:
            wanted += [key for key, check in known.items() if key not in wanted and in_reach(check, mutant.ranks)]
        ranks = max([mutant.ranks, *(known[key].ranks for key in mutant.killers if key in known)])
        items.append(Item(role=role, name=name, ranks=ranks, checks=tuple(wanted), mutant=mutant.name))
    return items


def in_reach(check: Check, ranks: int) -> bool:
    """Tell whether a check is part of the self-test of a target with so many ranks."""
    return check.level <= Level.FAULTS and check.ranks <= ranks
