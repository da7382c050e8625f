"""The inference fleet of a run over time: lost replicas are replaced, others come and go on request.

Knows: who is being made, who leaves, how many losses may still be replaced, and the words for all that.
Does not know: how requests are routed (`pool`), how weights travel (`weight_sync`), or who asked (extension `scale`).

A replica is made while the others serve. It starts on the starting weights, takes part in the next
update and serves from its commit on. When nobody serves, the trainer sends the current version at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from areal_core.contract.errors import ArealError, NoReplica, ResourceError, WorkerDied, WorkerError
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import EngineInfo
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.replica import ReplicaStage
from areal_core.fleet.turns import OwnDevices
from areal_core.fleet.weight_sync import WeightSync
from areal_core.observe.events import EventLog, EventSink
from areal_core.plugins.extensions import RunView


class Launcher(Protocol):
    """Makes and ends single replicas."""

    async def place(self) -> Worker:
        """Start a worker process; on an error nothing is left of it."""

    async def start(self, worker: Worker) -> EngineInfo:
        """Load the starting policy on it."""

    async def end(self, worker_id: str) -> None:
        """End it and wait until it is gone. Idempotent."""

    def failure(self, worker_id: str) -> WorkerError | None:
        """Return the error it ended or fell silent with; None while it is well."""


class ElasticFleet:
    """Keeps the replicas of a pool; satisfies `fleet.roster.ReplicaSource`. One per run, in the controller.

    Events: `replica_lost` (worker, error, replaced), `replica_joined` (worker, version, replicas),
    `replica_removed` (worker, replicas); `replicas` counts those that serve.
    """

    def __init__(
        self,
        *,
        pool: InferencePool,
        sync: WeightSync,
        launcher: Launcher,
        max_replacements: int,
        tell: EventSink,
        turns: OwnDevices | None = None,
    ) -> None:
        """Take a started pool. `max_replacements` bounds how many losses are made good over the whole run.

        A replica loads its weights when `turns` has the devices with the fleet.
        """
        self._turns = turns or OwnDevices()
        self.pool, self.sync, self._launcher, self._tell = pool, sync, launcher, tell
        self._left_to_replace = max_replacements
        self._making: list[_Making] = []
        self._placing = 0
        self._leaving: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to look after the pool."""
        self.pool.keep(self)

    @property
    def coming(self) -> bool:
        """Return whether a replica is being made."""
        return bool(self._making or self._placing)

    @property
    def size(self) -> int:
        """Return how many replicas serve or are on their way to; those that leave are not counted."""
        return len(self._staying()) + len(self._making) + self._placing

    @property
    def num_serving(self) -> int:
        """Return how many replicas take requests."""
        return self.pool.num_serving

    @property
    def moving(self) -> bool:
        """Return whether somebody comes, joins or leaves."""
        return bool(self._placing or self._tasks) or any(replica.joining for replica in self.pool.replicas)

    async def resize(self, wanted: int) -> None:
        """Go towards `wanted` replicas, 1 or more. Returns once every new worker process is there.

        Engines load, replicas join and others leave after that; `moving` tells when they have. Of those that
        may leave, the last to come goes first, and one that does not serve yet before one that does.

        Raises:
            ResourceError: the machines do not hold that many; the fleet stays as it is.
            ArealError: whatever else kept a worker from starting; the fleet stays as it is too.
        """
        missing = wanted - self.size
        if missing > 0:
            for worker in await self._place(missing):
                self._make(worker)
        for _ in range(-missing):
            self._let_one_go()

    def lost(self, worker_id: str, error: BaseException) -> None:
        """Replace a replica that is out of service, while losses may be replaced; see `ReplicaSource.lost`."""
        if self._closed:
            return
        replaced = self._left_to_replace > 0 and worker_id not in self._leaving
        self._tell("replica_lost", worker=worker_id, error=str(error), replaced=replaced)
        if replaced:
            self._left_to_replace -= 1
            self._make(instead_of=worker_id)
        else:
            self._spawn(self._launcher.end(worker_id))
        if not self.pool.num_serving:
            if self.pool.expecting:
                self._spawn(self._catch_up())
            else:
                self._fatal = self._fatal or error
        self.pool.notify()

    def joined(self, worker_id: str) -> None:
        """Write down that a replica serves; see `ReplicaSource.joined`."""
        self._tell("replica_joined", worker=worker_id, version=self.sync.version, replicas=self.pool.num_serving)

    def check(self) -> None:
        """Look at every replica, for `Supervisor.watch_with`.

        Raises:
            BaseException: what left the run without a replica, or broke its keeping.
        """
        self.look()
        if self._fatal is not None:
            raise self._fatal

    def look(self) -> None:
        """Take dead replicas out of service; see `ReplicaSource.look`.

        One that is merely silent may come back, so it is given up only when all that serve are silent.
        """
        failures = {
            replica.id: error
            for replica in self.pool.replicas
            if replica.healthy and (error := self._launcher.failure(replica.id)) is not None
        }
        serving = [replica.id for replica in self.pool.replicas if replica.stage is ReplicaStage.SERVING]
        nobody = bool(serving) and all(worker_id in failures for worker_id in serving)
        for worker_id, error in failures.items():
            if isinstance(error, WorkerDied) or (nobody and worker_id in serving):
                self.pool.exclude(worker_id, error)

    async def close(self) -> None:
        """Stop making, joining and removing; the scheduler ends the workers. Idempotent."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _staying(self) -> list[str]:
        """Return who serves or waits to join and is not asked to leave; the last to come is last."""
        return [
            replica.id
            for replica in self.pool.replicas
            if replica.stage in (ReplicaStage.JOINING, ReplicaStage.SERVING) and replica.id not in self._leaving
        ]

    async def _place(self, number: int) -> list[Worker]:
        """Start worker processes, all of them or none."""
        self._placing += number
        try:
            placed = await asyncio.gather(*(self._launcher.place() for _ in range(number)), return_exceptions=True)
        finally:
            self._placing -= number
        errors = [answer for answer in placed if isinstance(answer, BaseException)]
        workers = [answer for answer in placed if not isinstance(answer, BaseException)]
        if errors:
            await asyncio.gather(*(self._launcher.end(worker.id) for worker in workers))
            self.pool.notify()
            raise next((error for error in errors if isinstance(error, ResourceError)), errors[0])
        return workers

    def _make(self, worker: Worker | None = None, *, instead_of: str = "") -> None:
        making = _Making(worker, instead_of)
        self._making.append(making)
        making.task = self._spawn(self._bring_up(making))

    async def _bring_up(self, making: _Making) -> None:
        """Make one replica and hand it to the pool; what goes wrong is a loss like any other."""
        try:
            if making.instead_of:
                await self._launcher.end(making.instead_of)  # what it owned, the new one may need
            making.worker = making.worker or await self._launcher.place()
            async with self._turns.generating(making.worker.id):
                await self._launcher.start(making.worker)
                self._making.remove(making)
                self.pool.add(making.worker)
        except ArealError as error:
            self._making.remove(making)
            self.lost(making.worker.id if making.worker is not None else making.instead_of, error)
            return
        if not self.pool.num_serving or not self.sync.number:
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            await self.sync.catch_up()
        except NoReplica:
            return  # every loss among them was told and is replaced, or ends the run

    def _let_one_go(self) -> None:
        if self._making:
            self._spawn(self._give_up(self._making.pop()))
            return
        staying = self._staying()
        joining = [replica.id for replica in self.pool.replicas if replica.joining and replica.id in staying]
        worker_id = (joining or staying)[-1]
        self._leaving.add(worker_id)
        self._spawn(self._let_go(worker_id))

    async def _give_up(self, making: _Making) -> None:
        """Stop making a replica and leave nothing of it."""
        assert making.task is not None
        making.task.cancel()
        await asyncio.wait({making.task})
        for worker_id in (making.instead_of, making.worker.id if making.worker is not None else ""):
            if worker_id:
                await self._launcher.end(worker_id)

    async def _let_go(self, worker_id: str) -> None:
        """Take one replica out of the fleet, its requests first, and end its process."""
        async with self.sync.between_updates():
            joining = any(replica.id == worker_id and replica.joining for replica in self.pool.replicas)
            if joining:
                self.pool.remove(worker_id)
        if not joining:
            await self.pool.drain(worker_id)
            async with self.sync.between_updates():
                self.pool.remove(worker_id)
        await self._launcher.end(worker_id)
        self._leaving.discard(worker_id)
        self._tell("replica_removed", worker=worker_id, replicas=self.pool.num_serving)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:  # Any: asyncio's own
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal = self._fatal or error
            self.pool.notify()


class _Making:
    """A replica on its way: its worker once there is one, and whom it replaces."""

    def __init__(self, worker: Worker | None, instead_of: str) -> None:
        self.worker, self.instead_of = worker, instead_of
        self.task: asyncio.Task[None] | None = None


def tell_news(events: EventLog, view: RunView, kind: str, **fields: Any) -> None:
    """Write one event of an `ElasticFleet` and show it. Any: plain data."""
    events.write(kind, **fields)
    view.note(_words(kind, fields))


def _words(kind: str, fields: dict[str, Any]) -> str:
    worker = fields["worker"]
    if kind == "replica_lost":
        then = "a replacement is starting" if fields["replaced"] else "it is not replaced"
        return f"replica {worker} is out of service, {then}: {fields['error']}"
    if kind == "replica_joined":
        return f"replica {worker} serves from version {fields['version']} on; {fields['replicas']} serving"
    return f"replica {worker} left; {fields['replicas']} serving"
