"""A suite of hand-made checks in the place of the shipped one: what a check gives is written in its body."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pytest

from areal_conformance.adapter import Adapter
from areal_conformance.check import Check, Level, Tier
from areal_conformance.inventory import Inventory, pin
from areal_conformance.outcome import Outcome, Result
from areal_conformance.run import suite as suites
from areal_conformance.run.asked import locator_of
from areal_conformance.run.record import Row
from areal_conformance.run.suite import Suite
from areal_conformance.target import Locator, Target
from areal_core.plugins.registry import Registry


class Make(Protocol):
    """Makes a check of the role workflow that ends as told."""

    def __call__(self, name: str, ends: str = "pass", message: str = "", **facts: Any) -> Check: ...


@pytest.fixture
def make() -> Make:
    """Return a maker of checks."""

    def made(name: str, ends: str = "pass", message: str = "", **facts: Any) -> Check:
        given = {"level": Level.SINGLE, "law": 7, "spec": "workflow#run", "tier": Tier.CORE, **facts}
        result = Result(check=f"workflow.{name}", outcome=ends, message=message, seconds=0.01)
        return Check(id=f"workflow.{name}", title=f"Claim of {name}.", body=lambda _bench: result, **given)

    return made


class HandMade:
    """A session that gives what the body of the check gives."""

    closed = 0
    poisoned = False

    def __init__(self, target: Target) -> None:
        self.made: list[str] = []

    def run(self, check: Check) -> Result:
        self.made.append(check.id)
        result = check.body(None)
        assert isinstance(result, Result)
        return result

    def close(self) -> None:
        HandMade.closed += 1


Offer = Callable[..., Suite]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return a function that puts checks in the place of the shipped ones."""

    def offered(
        *checks: Check, pinned: Iterable[Check] | None = None, retired: tuple[str, ...] = (), patience: float = 1.0
    ) -> Suite:
        def locate(locator: Locator) -> Target:
            return Target(locator=locator, registry=Registry(), adapter=Adapter(patience=patience), origin="toy 1.0")

        listed = checks if pinned is None else tuple(pinned)
        suite = Suite(
            inventory=Inventory(checks={check.id: pin(check) for check in listed}, retired=retired),
            checks_of=lambda role: checks,
            locator_of=locator_of,
            locate=locate,
            session=HandMade,
        )
        monkeypatch.setattr(suites, "shipped", lambda: suite)
        return suite

    return offered


@pytest.fixture
def row() -> Callable[..., Row]:
    """Return a maker of rows."""

    def made(name: str, ends: Outcome | str = Outcome.PASS, **facts: Any) -> Row:
        given = {"title": "T.", "law": 7, "spec": "workflow#run", "level": 1, "tier": Tier.CORE, **facts}
        return Row(id=f"workflow.{name}", outcome=ends, **given)

    return made
