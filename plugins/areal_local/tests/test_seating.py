"""Who sits where in a group of weights, from what receivers say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from areal_core.contract.errors import WeightSyncError
from areal_local.transports.seating import Seating, seat


def told(host: str, **changes: Any) -> dict[str, Any]:  # Any: JSON
    return {"ranks": 1, "place": "cpu", "held": "", "signs": True, "host": host, **changes}


def seated(*receivers: dict[str, Any], backend: str = "auto", fan_out: str = "auto") -> Seating:
    names = [f"rollout.{number}/0" for number in range(len(receivers))]
    return seat(names, receivers, host="here", backend=backend, fan_out=fan_out)


def test_receivers_of_one_host_follow_each_other() -> None:
    """Also with several ranks each; every rank is called by who sits there, and on which host."""
    found = seated(told("there"), told("here", ranks=2), told("there", ranks=2))

    assert found.firsts == (3, 1, 4)
    assert found.world_size == 6
    assert found.seats == (
        "the sender at here",
        *["rollout.1/0 at here"] * 2,
        "rollout.0/0 at there",
        *["rollout.2/0 at there"] * 2,
    )
    assert str(found).startswith("gloo, from each to the next: the sender at here -> rollout.1/0 at here -> ")


@pytest.mark.parametrize(
    ("receivers", "fan_out", "route", "signed"),
    [
        ([told("a"), told("b")], "auto", "chain", True),
        ([told("a"), told("b")], "broadcast", "broadcast", True),
        ([told("a"), told("b", signs=False)], "auto", "broadcast", False),
    ],
)
def test_bytes_are_passed_on_where_all_can(
    receivers: list[dict[str, Any]], fan_out: str, route: str, signed: bool
) -> None:
    """Ranks that join by torch's own helper take broadcasts only, and then everybody does."""
    found = seated(*receivers, fan_out=fan_out)

    assert (found.route, found.signed, found.backend) == (route, signed, "gloo")


def test_a_backend_that_somebody_lacks_is_refused() -> None:
    """Before anybody is given a seat."""
    with pytest.raises(WeightSyncError, match="over nccl"):
        seated(told("a"), backend="nccl")
