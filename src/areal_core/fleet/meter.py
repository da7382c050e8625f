"""What the inference fleet has done so far, read once a second beside the training loop.

Knows: how to add up replicas that come and go.
Does not know: steps. Asking at every step would make each step wait for a busy replica to answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from areal_core.contract.inference import FLEET_METRICS, EngineStatus
from areal_core.fleet.pool import InferencePool

PERIOD_S = 1.0
_NOTHING = EngineStatus(version=0, num_running=0, num_waiting=0, paused=False)


class FleetMeter:
    """The latest totals of the fleet since it started.

    `tokens_generated` is a sum over replicas, those that are gone included. `busy_s` adds up what the
    replicas of each moment did, as a mean over them. `read_at` is when both were true; a step may end long after, so
    shares and rates are over the time between readings. `metrics` are those of `FLEET_METRICS` that replicas tell, each
    the mean over the replicas that answered last and tell it.
    """

    def __init__(self, pool: InferencePool, now: Callable[[], float] = time.monotonic) -> None:
        """Read `pool`."""
        self.read_at = now()
        self.tokens_generated = 0
        self.busy_s = 0.0
        self.metrics: Mapping[str, float] = {}
        self._pool, self._now = pool, now
        self._seen: dict[str, EngineStatus] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read once a second."""
        self._task = asyncio.create_task(self._run(), name="fleet meter")

    async def read(self) -> None:
        """Ask every replica now. One that does not answer keeps its place in the last totals."""
        answers = await self._pool.status()
        statuses = {worker: answer for worker, answer in answers.items() if isinstance(answer, EngineStatus)}
        for worker, status in statuses.items():
            before = self._seen.get(worker, _NOTHING)
            self.tokens_generated += max(0, status.tokens_generated - before.tokens_generated)
            self.busy_s += max(0.0, status.busy_s - before.busy_s) / len(statuses)
            self._seen[worker] = status
        if statuses:
            self.read_at = self._now()
            self.metrics = _means([status.metrics for status in statuses.values()])

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(PERIOD_S)


def _means(replicas: Sequence[Mapping[str, float]]) -> dict[str, float]:
    told = {name: [metrics[name] for metrics in replicas if name in metrics] for name in FLEET_METRICS}
    return {name: sum(values) / len(values) for name, values in told.items() if values}
