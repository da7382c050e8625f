"""Who sits where in the group of one transfer: its backend, the way bytes take through it, and the order of ranks.

Knows: what every receiver said of itself when it came.
Does not know: groups, stores, or who is really there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_torch.collective.chain import along_hosts
from areal_torch.collective.group import GLOO, choose, place
from areal_torch.collective.rank_slot import BROADCAST, CHAIN

SENDER = "the sender"


@frozen(kw_only=True)
class Seating:
    """Ranks of a group. `firsts` has each receiver's first rank in the order they were named; rank 0 sends.

    `seats` says for every rank who sits there.

    Example: Seating(backend="gloo", route="chain", signed=True, firsts=(2, 1),
        seats=("the sender at 10.0.0.1", "rollout.1/0 at 10.0.0.1", "rollout/0 at 10.0.0.2"))
    """

    backend: str
    route: str
    signed: bool
    firsts: tuple[int, ...]
    seats: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Return how many ranks there are."""
        return len(self.seats)

    def __str__(self) -> str:
        if self.route == CHAIN:
            return f"{self.backend}, from each to the next: {' -> '.join(self.seats)}"
        return f"{self.backend}, from {self.seats[0]} to {', '.join(self.seats[1:])}"


def seat(
    names: Sequence[str], told: Sequence[Mapping[str, Any]], *, host: str, backend: str, fan_out: str
) -> Seating:  # Any: JSON
    """Seat receivers: over gloo in a chain that enters each host once, if all of them can pass on what they get.

    NCCL and HCCL cut what they broadcast into pieces themselves. An engine's own ranks that join by torch's helper
    take broadcasts and nothing else.

    Args:
        names: of the receivers, in the order in which they were named.
        told: what each said (`CollectiveSource.take_slot`).
        host: the sender's.
        backend, fan_out: as in `CollectiveConfig`.

    Raises:
        WeightSyncError: the backend that is wanted cannot be used by all of them.
    """
    chosen = choose(backend, [place(), *(str(one["place"]) for one in told)])
    joins_by_kit = all(one["signs"] for one in told)
    order = along_hosts([str(one["host"]) for one in told], host)
    firsts, seats = [0] * len(names), [f"{SENDER} at {host}"]
    for number in order:
        firsts[number] = len(seats)
        seats += [f"{names[number]} at {told[number]['host']}"] * int(told[number]["ranks"])
    return Seating(
        backend=chosen,
        route=CHAIN if joins_by_kit and chosen == GLOO and fan_out == "auto" else BROADCAST,
        # NCCL and HCCL keep copies of their store, which one made in Python cannot give them.
        signed=joins_by_kit and chosen == GLOO,
        firsts=tuple(firsts),
        seats=tuple(seats),
    )
