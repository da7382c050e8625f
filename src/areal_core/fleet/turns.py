"""Who has the devices that trainers and fleet share: one side at a time.

    generating -> sleep -> onload -> training -> offload -> wake -> generating

Knows: the order in which devices change hands, and what may hold memory at every moment, after an error too.
Does not know: why a turn begins, or what weights an engine that woke is given (`weight_sync`).

While something changes, `stage` is what is being done; after an error it is what failed. The next turn begins there:
every call may be made again. The fleet's memory is given back before the trainers' is fetched, and the reverse, so
that never both are on the devices. Every call to a worker has a deadline, and waiting for a turn ends with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Protocol

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.inference import PauseMode
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.replica import Replica


class Stage(StrEnum):
    """Who has the devices, or how they change hands."""

    GENERATING = "generating"
    """The fleet has them; the trainers' memory is elsewhere."""
    SLEEP = "sleep"
    ONLOAD = "onload"
    TRAINING = "training"
    """The trainers have them; the fleet sleeps."""
    OFFLOAD = "offload"
    WAKE = "wake"


FLEETS = (Stage.WAKE, Stage.GENERATING, Stage.SLEEP)
"""When the fleet may hold memory of the devices; in the other stages the trainers may."""


class Offloads(Protocol):
    """A training role that gives its memory back."""

    async def offload(self) -> None: ...
    async def onload(self) -> None: ...


class OwnDevices:
    """Every role has devices of its own, and nobody waits for a turn."""

    shared = False

    async def train(self) -> None:
        """Give the devices to the trainers; they are theirs on return. Idempotent."""

    async def generate(self) -> None:
        """Give the devices to the fleet, which has memory on return but no weights. Idempotent."""

    @asynccontextmanager
    async def generating(self, worker_id: str) -> AsyncIterator[None]:
        """Enclose the start of a replica: it begins in the fleet's turn, which lasts until it ends."""
        yield

    def taken_s(self) -> Mapping[str, float]:
        """Return the seconds each change took since this was last asked, by `Stage`."""
        return {}


class Turns(OwnDevices):
    """Trainers and fleet take turns. One per run; it begins with the fleet's turn, the trainers offloaded.

    Args:
        pool: the fleet; a replica that fails to sleep or to wake is taken out of it.
        trainers: the roles whose devices the fleet is on.
        end: ends a replica by its worker's id and waits until it is gone. Idempotent.
        timeout_s: bound of each call to a replica.
    """

    shared = True

    def __init__(
        self,
        *,
        pool: InferencePool,
        trainers: Sequence[Offloads],
        end: Callable[[str], Awaitable[None]],
        timeout_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.stage = Stage.GENERATING
        self._pool, self._trainers, self._end, self._timeout_s = pool, trainers, end, timeout_s
        self._clock: Clock = clock or SystemClock()
        self._lock, self._news = asyncio.Lock(), asyncio.Event()
        self._num_starting = 0
        self._holding = {replica.id for replica in pool.replicas}  # who has, or may still have, memory of the devices
        self._seconds: dict[str, float] = {}

    async def train(self) -> None:
        """Give the devices to the trainers.

        Requests in flight come back with the tokens they have, and are held back until the fleet has new weights.

        Raises:
            ArealError: what a trainer raised; `stage` is `onload`.
        """
        async with self._lock:
            await self._until(lambda: not self._num_starting)
            if self.stage in FLEETS:
                with self._during(Stage.SLEEP):
                    await self._put_to_sleep()
            if self.stage is not Stage.TRAINING:
                with self._during(Stage.ONLOAD):
                    await _all(trainer.onload() for trainer in self._trainers)
                self.stage = Stage.TRAINING

    async def generate(self) -> None:
        """Give the devices to the fleet: who wakes waits for weights.

        Raises:
            ArealError: what a trainer raised; `stage` is `offload`.
        """
        async with self._lock:
            if self.stage not in FLEETS:
                with self._during(Stage.OFFLOAD):
                    await _all(trainer.offload() for trainer in self._trainers)
            if self.stage is not Stage.GENERATING:
                with self._during(Stage.WAKE):
                    await self._each("wake")
                self.stage = Stage.GENERATING
                self._tell()

    @asynccontextmanager
    async def generating(self, worker_id: str) -> AsyncIterator[None]:
        await self._until(lambda: self.stage is Stage.GENERATING)
        self._num_starting += 1
        self._holding.add(worker_id)
        try:
            yield
        finally:
            self._num_starting -= 1
            self._tell()

    def taken_s(self) -> Mapping[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _put_to_sleep(self) -> None:
        """Have every replica give its memory back; whoever does not, or left the fleet, is gone on return."""
        self._pool.suspend()
        await self._each("pause", PauseMode.ABORT.value)
        await self._each("sleep")
        asleep = {replica.id for replica in self._pool.replicas if replica.healthy}
        await _all(self._end(worker_id) for worker_id in sorted(self._holding - asleep))
        self._holding = asleep

    async def _each(self, method: str, *args: object) -> None:
        """Call a method of every replica at once; one that fails it is taken out of service."""

        async def call(replica: Replica) -> None:
            try:
                await replica.worker.call(method, *args, timeout_s=self._timeout_s)
            except Exception as error:  # whatever it is: its memory is in a state nobody knows
                self._pool.exclude(replica.id, error)

        await _all(call(replica) for replica in self._pool.replicas if replica.healthy)

    @contextmanager
    def _during(self, stage: Stage) -> Iterator[None]:
        self.stage = stage
        began = self._clock.now()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + self._clock.now() - began


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Await all at once to their ends, then raise the first error: a call goes on in its worker, awaited or not."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
