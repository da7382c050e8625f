"""Schedulers in order pass what is quick to run; the self-test runs all of it, and every mutant."""

from __future__ import annotations

import attrs
import pytest

from areal_conformance.adapter import Adapter
from areal_conformance.checks import all_checks
from areal_conformance.outcome import Outcome
from areal_conformance.session import Session
from areal_conformance.target import Locator, locate

QUICK = ("scheduler.submit.ranks", "scheduler.calls.at_once", "scheduler.cancel.ends", "scheduler.death.in_flight")
ALIAS = ("access.loopback", "access.where_told", "access.stranger", "rendezvous.worker", "rendezvous.meets")


@pytest.mark.parametrize("name", ["local", "second"])
def test_schedulers_in_order_pass(name: str) -> None:
    """The core's own and the second one, by the same checks."""
    session = Session(locate(Locator(role="scheduler", name=name)))
    try:
        results = [session.run(all_checks()[check]) for check in QUICK]
    finally:
        session.close()

    assert [(r.check, r.message) for r in results if r.outcome is not Outcome.PASS] == []


def test_workers_may_have_another_address_than_the_controller() -> None:
    """The local scheduler on a loopback alias: what assumes 127.0.0.1 fails here."""
    target = locate(Locator(role="scheduler", name="local"))
    session = Session(attrs.evolve(target, adapter=Adapter(options={"": {"host": "127.0.0.2"}})))
    ids = (*QUICK, *(f"scheduler.{name}" for name in ALIAS))
    try:
        results = [session.run(all_checks()[check]) for check in ids]
    finally:
        session.close()

    assert [(r.check, r.message) for r in results if r.outcome is not Outcome.PASS] == []
