"""What a worker needs to know: checks by id, and a session for an item.

A worker is told a catalogue as `module:name`, so that tests can give it another.

Knows: the shipped one.
Does not know: workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from areal_conformance.check import Check
from areal_conformance.checks import all_checks
from areal_conformance.run.suite import Runs
from areal_conformance.session import Session
from areal_conformance.target import Locator, locate
from areal_proof.selftest.work import Item


class Catalogue(Protocol):
    """Where a worker finds its checks and targets."""

    def checks(self) -> Mapping[str, Check]:
        """Return every check by id."""

    def session(self, item: Item) -> tuple[Runs, float]:
        """Return a session on the item's target, and the target's patience."""


class Shipped:
    """The suite as it is released."""

    def checks(self) -> Mapping[str, Check]:
        """Return every check by id."""
        return all_checks()

    def session(self, item: Item) -> tuple[Runs, float]:
        """Return a session on the item's target, and the target's patience."""
        target = locate(Locator(role=item.role, name=item.name, ranks=item.ranks, mutant=item.mutant))
        return Session(target), target.adapter.patience


SHIPPED = Shipped()
SHIPPED_PLACE = f"{__name__}:SHIPPED"
