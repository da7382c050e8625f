"""How many processes make checks at once: as the machine has room for, and never where they would share one thing."""

from __future__ import annotations

from typing import Any

import pytest

from areal_conformance.adapter import Adapter
from areal_conformance.run.asked import Asked, locator_of
from areal_conformance.run.plan import MOST_JOBS, jobs_for
from areal_conformance.target import Locator, Target
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry


def target(device: str = "cpu", **adapter: Any) -> Target:
    """Return a target with such an adapter."""
    locator = Locator(role="train", name="toy", device=device)
    return Target(locator=locator, registry=Registry(), adapter=Adapter(**adapter))


@pytest.mark.parametrize(("cores", "jobs"), [(1, 1), (2, 2), (4, MOST_JOBS), (64, MOST_JOBS)])
def test_one_for_each_core(monkeypatch: pytest.MonkeyPatch, cores: int, jobs: int) -> None:
    """Of those this process may use, and not a whole server."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)

    assert jobs_for(Asked(backend="toy"), target()) == jobs


@pytest.mark.parametrize(
    ("asked", "made"),
    [({"level": 5}, {}), ({}, {"device": "cuda"}), ({}, {"slow_start": True})],
    ids=["figures", "accelerator", "slow start"],
)
def test_one_where_they_would_share_one_thing(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], made: dict[str, Any]
) -> None:
    """Processors that are timed, the memory of a device, a server; one such side makes a pair such."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    one = target(**made)
    pair = Target(
        locator=Locator(role="pair", name="toy+toy", device=one.locator.device),
        registry=one.registry,
        adapter=Adapter(),
        parts={"train": target(), "infer": one},
    )

    assert jobs_for(Asked(backend="toy", **asked), one) == 1
    assert jobs_for(Asked(backend="toy", **asked), pair) == 1


def test_a_number_below_none_is_refused() -> None:
    """0 leaves it to the suite."""
    with pytest.raises(ConfigError, match="--jobs -1"):
        locator_of(Asked(backend="second", role="train", jobs=-1))
