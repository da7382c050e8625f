"""What the inference fleet has done so far, read once a second beside the training loop.

Knows: how to add up replicas.
Does not know: steps. Asking at every step would make each step wait for a busy replica to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from areal_core.contract.inference import EngineStatus
from areal_core.rollout.pool import InferencePool

PERIOD_S = 1.0


class FleetMeter:
    """The latest totals of the fleet since it started.

    `tokens_generated` is a sum over replicas, `busy_s` a mean, so that 1 - busy / wall is an idle share.
    """

    def __init__(self, pool: InferencePool, on_lost: Callable[[str, BaseException], None]) -> None:
        """Read `pool`; `on_lost` hears once of every replica that went out of service, and why."""
        self.tokens_generated = 0
        self.busy_s = 0.0
        self._pool = pool
        self._on_lost = on_lost
        self._lost: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read once a second."""
        self._task = asyncio.create_task(self._run(), name="fleet meter")

    async def read(self) -> None:
        """Ask every replica now. One that does not answer keeps its place in the last totals."""
        answers = await self._pool.status()
        for worker, answer in answers.items():
            if isinstance(answer, BaseException) and worker not in self._lost:
                self._lost.add(worker)
                self._on_lost(worker, answer)
        statuses = [answer for answer in answers.values() if isinstance(answer, EngineStatus)]
        if statuses:
            self.tokens_generated = max(self.tokens_generated, sum(s.tokens_generated for s in statuses))
            self.busy_s = max(self.busy_s, sum(s.busy_s for s in statuses) / len(statuses))

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
