"""Trainers and a fleet on one device, in this process: who holds memory of it, at every moment.

Knows: scripted engines that sleep, trainers that leave, a clock, and that both sides at once are one too many.
Does not know: any memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.benches.fleets import EndableWorker, Inline, NoBytes, ScriptedLauncher, Trainer

from areal_core.contract.errors import GenerationFailed, TrainError
from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Offer, Receipt
from areal_core.fleet.elastic import ElasticFleet
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.fleet.turns import Turns
from areal_core.fleet.weight_sync import WeightSync, WeightUpdate
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import Length, ScriptedEngine

CHANGE_S = 1.0
"""Of giving memory back, and of taking it."""
END_S = 3.0
"""Until a worker that is ended is gone, and its memory with it."""


class Device:
    """One device. `log` has every change of hands, `wrong` every moment at which both sides were on it."""

    def __init__(self) -> None:
        self.trainers: set[str] = set()
        self.fleet: set[str] = set()
        self.log: list[str] = []
        self.wrong: list[str] = []
        self.is_dead: Callable[[str], bool] = lambda _worker_id: False

    def take(self, side: set[str], name: str) -> None:
        """Take memory. An engine whose worker is gone has none."""
        side.add(name)
        self.fleet -= {worker_id for worker_id in self.fleet if self.is_dead(worker_id)}
        if self.trainers and self.fleet:
            self.wrong.append(f"{sorted(self.trainers)} and {sorted(self.fleet)} at once, after {self.log[-4:]}")


class SleepingEngine(ScriptedEngine):
    """Sleeps as the contract says, and tells what was asked of it that is not allowed."""

    def __init__(self, device: Device, clock: StepClock, length: Length) -> None:
        super().__init__(clock, length=length)
        self.id = ""
        self.asleep = self.empty = False
        self.refuses: set[str] = set()
        """Methods that fail."""
        self._device, self._sleep_s = device, clock.sleep

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        self.loads()
        return await super().start(spec)

    def loads(self) -> None:
        """Take memory, as an engine does early in its start."""
        self._device.take(self._device.fleet, self.id)

    async def pause(self, mode: PauseMode) -> None:
        self._expect("pause", True, "")
        await super().pause(mode)

    async def sleep(self) -> None:
        self._expect("sleep", not self._running.is_set() and not self._producers, "requests are in flight")
        await self._sleep_s(CHANGE_S)
        self.asleep = self.empty = True
        self._device.fleet.discard(self.id)

    async def wake(self) -> None:
        self._expect("wake", True, "")
        self._device.take(self._device.fleet, self.id)
        await self._sleep_s(CHANGE_S)
        self.asleep = False

    async def receive_weights(self, offer: Offer, version: int) -> Receipt:
        self._expect("receive_weights", not self.asleep, "it sleeps")
        return await super().receive_weights(offer, version)

    async def commit_weights(self, version: int) -> None:
        await super().commit_weights(version)
        self.empty = False

    async def resume(self) -> None:
        self._expect("resume", not self.empty, "it has no weights")
        await super().resume()

    def _expect(self, method: str, allowed: bool, why: str) -> None:
        if not allowed:
            self._device.wrong.append(f"{method} of {self.id}: {why}")
        if not allowed or method in self.refuses:
            raise GenerationFailed(f"no {method}", why=why)


class SharingTrainer(Trainer):
    """A role of one rank; sends only while it is on the device."""

    def __init__(self, device: Device, clock: StepClock, name: str = "actor") -> None:
        super().__init__()
        self.name, self.refuses = name, set[str]()
        self._device, self._sleep_s = device, clock.sleep

    async def offload(self) -> None:
        await self._change("offload")
        self._device.trainers.discard(self.name)

    async def onload(self) -> None:
        self._device.take(self._device.trainers, self.name)
        await self._change("onload")

    async def call(self, method: str, *args: Any, timeout_s: float) -> Receipt:
        if self.name not in self._device.trainers:
            self._device.wrong.append(f"{method} while {self.name} is off the device")
        return await super().call(method, *args, timeout_s=timeout_s)

    async def _change(self, what: str) -> None:
        self._device.log.append(f"{self.name} {what}")
        await self._sleep_s(CHANGE_S)
        if what in self.refuses:
            raise TrainError(f"{self.name} cannot {what}")


class SharingLauncher(ScriptedLauncher):
    """Makes replicas on the device."""

    def __init__(self, device: Device, clock: StepClock, length: Length) -> None:
        super().__init__(clock, length=length)
        self._device, self._steps, self._long = device, clock, length
        device.is_dead = lambda worker_id: worker_id in self.workers and self.workers[worker_id].dead

    def make(self) -> EndableWorker:
        engine = SleepingEngine(self._device, self._steps, self._long)
        worker = EndableWorker(engine, id=f"rollout.{len(self.workers)}/0", clock=self._steps)
        engine.id = worker.id
        self.workers[worker.id] = worker
        return worker

    async def end(self, worker_id: str) -> None:
        """End a worker, which takes its time to go."""
        await self._steps.sleep(END_S)
        await super().end(worker_id)


class SharedBench:
    """A fleet and trainers that take turns, with everything a run has around them."""

    def __init__(
        self,
        num_replicas: int = 1,
        *,
        length: int = 6,
        roles: tuple[str, ...] = ("actor",),
        turns: Callable[..., Turns] = Turns,
    ) -> None:
        asyncio.get_running_loop().set_default_executor(Inline())
        self.clock, self.device = StepClock(), Device()
        self.launcher = SharingLauncher(self.device, self.clock, lambda _request: length)
        first = [self.launcher.make() for _ in range(num_replicas)]
        self.device.fleet.update(worker.id for worker in first)
        self.pool = InferencePool(first, clock=self.clock, policy=PoolPolicy(drain_s=3.0))
        self.trainers = [SharingTrainer(self.device, self.clock, name) for name in roles]
        self.trainer = self.trainers[0]
        self.turns = turns(
            pool=self.pool, trainers=self.trainers, end=self.launcher.end, timeout_s=10.0, clock=self.clock
        )
        self.sync = WeightSync(
            trainers=[self.trainer],
            pool=self.pool,
            transport=NoBytes(),  # type: ignore[arg-type]
            pause=PauseMode.ABORT,
            timeout_s=10.0,
            clock=self.clock,
            turns=self.turns,
        )
        self.fleet = ElasticFleet(
            pool=self.pool,
            sync=self.sync,
            launcher=self.launcher,
            max_replacements=100,
            tell=lambda kind, **fields: None,
            turns=self.turns,
        )
        self.fleet.start()
        self.version = 0

    async def train(self, seconds: float = 2.0) -> WeightUpdate:
        """Take one step, as the loop does."""
        async with self.sync.stepping():
            await self.turns.train()
            self.trainer.version = -1
            await self.clock.sleep(seconds)
            self.version += 1
            self.trainer.version = self.version
            return await self.sync.update(self.version)

    async def until(self, *waited: asyncio.Future[Any], seconds: int = 500) -> None:
        """Step the clock until all is done and nobody but those who join comes or goes."""
        for _ in range(4 * seconds):
            if all(future.done() for future in waited) and not self.fleet.coming:
                return
            await self.clock.advance(0.25)
            self.fleet.check()
        raise AssertionError(f"not done within {seconds} virtual seconds: {waited}, {self.turns.stage}")

    def engine(self, number: int) -> SleepingEngine:
        engine = list(self.launcher.workers.values())[number].engine
        assert isinstance(engine, SleepingEngine)
        return engine
