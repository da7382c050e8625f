"""The parts a run is made of, in one place, so that tests can put others there.

Knows: where checks, the inventory and sessions come from.
Does not know: what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import frozen

from areal_conformance.check import Check
from areal_conformance.inventory import Inventory, read_inventory
from areal_conformance.outcome import Result
from areal_conformance.run.asked import Asked, locator_of
from areal_conformance.target import Locator, Target


class Runs(Protocol):
    """Makes checks on one target: a `session.Session`."""

    poisoned: bool
    """Whether something of a check that was given up is in the way of the next."""

    def run(self, check: Check) -> Result:
        """Make one check."""

    def close(self) -> None:
        """Let everything go."""


@frozen(kw_only=True)
class Suite:
    """Everything a run needs from the package."""

    inventory: Inventory
    checks_of: Callable[[str], Iterable[Check]]
    locator_of: Callable[[Asked], Locator]
    locate: Callable[[Locator], Target]
    session: Callable[[Target], Runs]


def shipped() -> Suite:
    """Return the suite as it is released."""
    from areal_conformance.checks import checks_of
    from areal_conformance.session import Session
    from areal_conformance.target import locate

    return Suite(inventory=read_inventory(), checks_of=checks_of, locator_of=locator_of, locate=locate, session=Session)
