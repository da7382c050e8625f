"""Who is in the inference fleet: replicas are added, admitted, excluded and removed, and others wait for them.

Knows: the replicas and their stages, and who makes them.
Does not know: requests, or why a replica comes or goes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from areal_core.contract.clock import Clock
from areal_core.contract.errors import NoReplica
from areal_core.contract.scheduler import Worker
from areal_core.fleet.breaker import Breaker
from areal_core.fleet.least_loaded import LeastLoaded
from areal_core.fleet.replica import Replica, ReplicaStage


class ReplicaSource(Protocol):
    """Who makes and replaces the replicas of a pool. Both methods are called at once and must not block."""

    @property
    def coming(self) -> bool:
        """Return whether a replica is being made that the pool does not have yet."""

    def look(self) -> None:
        """Exclude from the pool whom the scheduler has given up."""

    def lost(self, worker_id: str, error: BaseException) -> None:
        """Hear that a replica is out of service for good; `coming` is True afterwards if it is replaced."""

    def joined(self, worker_id: str) -> None:
        """Hear that a replica serves from here on."""


class Roster:
    """The replicas of one policy.

    Args:
        workers: those that serve from the start.
        breaker: makes the circuit breaker of one replica.
        patience_s: how long to wait for a replica that is expected.
    """

    def __init__(
        self, workers: Sequence[Worker], *, breaker: Callable[[], Breaker], patience_s: float, clock: Clock
    ) -> None:
        self._breaker, self._patience_s, self.clock = breaker, patience_s, clock
        self._source: ReplicaSource | None = None
        self._least_loaded, self._numbers = LeastLoaded(clock), itertools.count()
        self._replicas = [self._replica(worker, ReplicaStage.SERVING) for worker in workers]
        self._news = asyncio.Event()

    @property
    def replicas(self) -> Sequence[Replica]:
        """Return every replica, in service or not, those removed left out."""
        return tuple(self._replicas)

    @property
    def num_serving(self) -> int:
        """Return how many replicas take requests, a moment's trouble of one aside."""
        return sum(replica.stage is ReplicaStage.SERVING for replica in self._replicas)

    @property
    def expecting(self) -> bool:
        """Return whether a replica may serve later that does not now."""
        return any(replica.joining for replica in self._replicas) or (self._source is not None and self._source.coming)

    def keep(self, source: ReplicaSource) -> None:
        """Tell `source` of every replica that is lost or joins, those lost before this call too."""
        self._source = source
        for replica in self._replicas:
            if replica.error is not None and not replica.healthy:
                source.lost(replica.id, replica.error)

    def add(self, worker: Worker) -> None:
        """Take a started replica in. It takes part in updates and serves once it was admitted."""
        self._replicas.append(self._replica(worker, ReplicaStage.JOINING))
        self.notify()

    def admit(self, worker_id: str) -> None:
        """Let a replica serve that joins and holds what the others serve."""
        replica = self.find(worker_id)
        if replica is not None and replica.joining:
            replica.stage = ReplicaStage.SERVING
            self._least_loaded.offer(replica)
            if self._source is not None:
                self._source.joined(worker_id)
            self.notify()

    def exclude(self, worker_id: str, error: BaseException) -> None:
        """Take a replica out of service for good, because of `error`."""
        replica = self.find(worker_id)
        if replica is not None:
            replica.take_out(error)

    def remove(self, worker_id: str) -> None:
        """Forget a replica. Requests it still has are made again elsewhere as soon as its calls fail. Idempotent."""
        replica = self.find(worker_id)
        if replica is not None:
            replica.stage = ReplicaStage.OUT
            self._replicas.remove(replica)

    def notify(self) -> None:
        """Have whoever waits for a replica look again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def present(self) -> None:
        """Wait until some replica can take weights.

        Raises:
            NoReplica: there is none, and none will come.
        """
        await self.until(lambda: any(replica.healthy for replica in self._replicas))

    def _replica(self, worker: Worker, stage: ReplicaStage) -> Replica:
        on_end = self._least_loaded.offer
        replica = Replica(worker, self._breaker(), stage, self._lost, on_end, next(self._numbers))
        on_end(replica)
        return replica

    def _lost(self, replica: Replica, error: BaseException) -> None:
        if self._source is not None:
            self._source.lost(replica.id, error)
        self.notify()

    def find(self, worker_id: str) -> Replica | None:
        return next((replica for replica in self._replicas if replica.id == worker_id), None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while a replica is expected, for as long as a request may take.

        Raises:
            NoReplica: nobody is expected any more, or did not come in that time.
        """
        deadline = self.clock.now() + self._patience_s
        while not condition():
            left = deadline - self.clock.now()
            if not self.expecting or left <= 0:
                raise self.no_replica()
            try:
                await self.clock.wait_for(self._news.wait(), left)
            except TimeoutError:
                continue

    def no_replica(self) -> NoReplica:
        return NoReplica(
            f"all {len(self._replicas)} inference replicas are out of service",
            why="\n".join(replica.describe() for replica in self._replicas),
            fix="see the logs of the inference workers, then resume the run",
        )
