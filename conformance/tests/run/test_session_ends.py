"""A backend cannot end the run by what it raises: exits and cancellations are failures of its check."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from areal_conformance import session as sessions
from areal_conformance.benches.base import Bench
from areal_conformance.outcome import Outcome
from areal_conformance.session import Session
from areal_conformance.target import Locator


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, offer: Any) -> Any:
    """Return a session with a bench that has nothing."""
    monkeypatch.setattr(sessions, "bench_for", lambda role, target: Bench(target))
    made = Session(offer().locate(Locator(role="workflow", name="toy")))
    yield made
    made.close()


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit, ValueError])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_backend_raises_is_a_failure(session: Session, make: Any, kind: Any, is_async: bool) -> None:
    """And the session goes on."""

    def plain(_bench: object) -> None:
        raise kind("out")

    async def coroutine(_bench: object) -> None:
        raise kind("out")

    result = session.run(attrs.evolve(make("a.one"), body=coroutine if is_async else plain))

    assert result.outcome is Outcome.FAIL
    assert result.message.startswith("law 7:")
    assert kind.__name__ in result.message
    assert session.run(attrs.evolve(make("a.two"), body=lambda _bench: None)).outcome is Outcome.PASS
