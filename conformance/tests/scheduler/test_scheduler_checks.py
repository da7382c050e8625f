"""Schedulers in order pass what is quick to run; the self-test runs all of it, and every mutant."""

from __future__ import annotations

import pytest

from areal_conformance.checks import all_checks
from areal_conformance.outcome import Outcome
from areal_conformance.session import Session
from areal_conformance.target import Locator, locate

QUICK = ("scheduler.submit.ranks", "scheduler.calls.at_once", "scheduler.cancel.ends", "scheduler.death.in_flight")


@pytest.mark.parametrize("name", ["local", "second"])
def test_schedulers_in_order_pass(name: str) -> None:
    """The core's own and the second one, by the same checks."""
    session = Session(locate(Locator(role="scheduler", name=name)))
    try:
        results = [session.run(all_checks()[check]) for check in QUICK]
    finally:
        session.close()

    assert [(r.check, r.message) for r in results if r.outcome is not Outcome.PASS] == []
