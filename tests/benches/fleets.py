"""Replicas that come and go in this process, as a scheduler would make and end them, and whoever sends them weights.

Knows: scripted engines and workers, a clock, how many places there are.
Does not know: who decides that a replica comes or goes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from areal_core.contract.clock import Clock
from areal_core.contract.errors import ResourceError, WorkerDied, WorkerError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Offer, Receipt
from areal_core.testing.engines import Length, ScriptedEngine, ScriptedWorker


class Inline(ThreadPoolExecutor):
    """Does at once what asyncio would give to a thread, so that the step clock sees all of it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Any: as in the library."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class NoBytes:
    """A transport that carries nothing; the engines of these tests take the offer for the weights."""

    def __init__(self) -> None:
        self.num_open = 0

    def open(self, version: int) -> Offer:
        self.num_open += 1
        return Offer(transport="none", version=version, location={})

    def release(self, _offer: Offer) -> None:
        self.num_open -= 1


class Trainer:
    """A rank whose weights are of `version`, and of none while a step is under way."""

    id, host = "actor/0", "127.0.0.1"

    def __init__(self) -> None:
        self.version = 0
        self.sent: list[int] = []

    async def call(self, _method: str, _offer: Offer, version: int, *, timeout_s: float) -> Receipt:
        assert version == self.version, f"asked to send {version} while the weights are {self.version}"
        self.sent.append(version)
        return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={})


class EndableWorker(ScriptedWorker):
    """A worker whose scheduler may end it: calls in flight and later ones raise WorkerError then."""

    ended = False

    def end(self) -> None:
        """End it as `Scheduler.cancel` does. Idempotent."""
        if not self.dead:
            self.ended = True
            self.die()

    def _died(self) -> WorkerError:
        return WorkerError(f"{self.id} was closed") if self.ended else super()._died()


class ScriptedLauncher:
    """Makes scripted replicas: `place_s` until a worker answers, `start_s` until its engine is ready.

    `workers` has every worker ever made, by id; `max_workers` may have their places at once: one that died has its
    place until it is ended.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        place_s: float = 1.0,
        start_s: float = 5.0,
        max_workers: int = 1000,
        length: Length | None = None,
    ) -> None:
        self.workers: dict[str, EndableWorker] = {}
        self.start_failures: list[Exception] = []
        """Raised by the next starts, one each."""
        self._clock = clock
        self._place_s, self._start_s = place_s, start_s
        self._max_workers = max_workers
        self._ended: set[str] = set()
        self._length = length

    @property
    def alive(self) -> list[str]:
        """Return the ids of workers that neither died nor were ended."""
        return [name for name, worker in self.workers.items() if not worker.dead]

    def make(self) -> EndableWorker:
        """Make a worker at once."""
        engine = ScriptedEngine(self._clock, length=self._length)
        worker = EndableWorker(engine, id=f"rollout.{len(self.workers)}/0", clock=self._clock)
        self.workers[worker.id] = worker
        return worker

    async def place(self) -> Worker:
        """Make a worker.

        Raises:
            ResourceError: there are `max_workers` already.
        """
        if len(self.workers.keys() - self._ended) >= self._max_workers:
            raise ResourceError("1 cuda devices are wanted and 0 are free")
        worker = self.make()
        try:
            await self._clock.sleep(self._place_s)
        except BaseException:
            await self.end(worker.id)
            raise
        return worker

    async def start(self, worker: Worker) -> EngineInfo:
        """Start its engine. Raises what `start_failures` holds, or WorkerDied."""
        if self.start_failures:
            raise self.start_failures.pop(0)
        await self._clock.sleep(self._start_s)
        info: EngineInfo = await worker.call("start", InferenceSpec(model_path="m"), timeout_s=60.0)
        return info

    async def end(self, worker_id: str) -> None:
        """End a worker."""
        if worker_id in self.workers:
            self._ended.add(worker_id)
            self.workers[worker_id].end()

    def failure(self, worker_id: str) -> WorkerError | None:
        """Return how a worker died; nothing for one that was ended."""
        worker = self.workers[worker_id]
        return WorkerDied(f"worker {worker_id} died") if worker.dead and not worker.ended else None
