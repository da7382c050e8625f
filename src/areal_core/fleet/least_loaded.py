"""Which replica has the fewest requests in flight, found without a look at every one.

Knows: for each replica that serves, a load that it has at least.
Does not know: sessions, or what a request is.

A request that begins leaves its replica's entry too low, one that ends makes a lower one where that is too high, and
only the last of a replica counts. So the least of all entries is the answer if it is true, and is put right if not.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

from areal_core.contract.clock import Clock
from areal_core.fleet.breaker import BreakerState
from areal_core.fleet.replica import Replica, ReplicaStage

_SPARE = 64  # entries beyond two for each replica before those that are too high are thrown away


class LeastLoaded:
    """Replicas by load, then by number; a choice takes O(log replicas) amortised over the requests that end."""

    def __init__(self, clock: Clock) -> None:
        """Start with nobody."""
        self._clock = clock
        self._replicas: dict[int, Replica] = {}
        self._entries: list[tuple[int, int]] = []
        self._last: dict[int, tuple[int, int]] = {}  # of each replica; its others are left where they are
        self._resting: list[tuple[float, int]] = []  # when a circuit that is open may be tried again, and whose

    def offer(self, replica: Replica) -> None:
        """Hear that a replica serves from here on, or that one of its requests has ended."""
        if replica.stage is ReplicaStage.SERVING:
            self._replicas[replica.number] = replica
            if (last := self._last.get(replica.number)) is None or replica.in_flight < last[0]:
                self._enter(replica)
            if len(self._entries) + len(self._resting) > 2 * len(self._replicas) + _SPARE:
                self._tidy()

    def choose(self, without: Collection[Replica] = ()) -> Replica | None:
        """Return the usable replica with the fewest requests in flight, of several the one that came first."""
        entries, aside, chosen = self._entries, [], None
        while self._resting and self._resting[0][0] <= self._clock.now():
            if (replica := self._replicas.get(heappop(self._resting)[1])) is not None:
                self._enter(replica)
        while entries:
            load, number = entry = entries[0]
            replica = self._replicas.get(number)
            if self._last.get(number) is not entry:
                heappop(entries)
            elif replica is None or replica.stage is not ReplicaStage.SERVING:
                self._last.pop(heappop(entries)[1])
            elif replica.in_flight != load:
                heappop(entries)
                self._enter(replica)
            elif not replica.breaker.allows:
                self._last.pop(heappop(entries)[1])  # a trial under way makes an entry when it ends
                if replica.breaker.state is BreakerState.OPEN:
                    heappush(self._resting, (replica.breaker.reopens_at, number))
            elif replica in without:
                aside.append(entry)
                heappop(entries)
            else:
                chosen = replica
                break
        for entry in aside:
            heappush(entries, entry)
        return chosen

    def _enter(self, replica: Replica) -> None:
        self._last[replica.number] = entry = (replica.in_flight, replica.number)
        heappush(self._entries, entry)

    def _tidy(self) -> None:
        """Keep one entry of each replica that serves."""
        self._replicas = {n: each for n, each in self._replicas.items() if each.stage is ReplicaStage.SERVING}
        self._last, self._entries, self._resting = {}, [], []
        for each in self._replicas.values():
            self._enter(each)
