"""How a run starts again by itself: how often, after which pause, and what goes on meanwhile.

Knows: what was lost, how many starts there were, whether the last one made a step, and what of a run stays.
Does not know: how a run starts (`run`), or from where (`checkpoint`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from attrs import define

from areal_core.config.plan import Plan
from areal_core.contract.errors import ArealError, ResourceError, WorkerError
from areal_core.contract.scheduler import Job, Scheduler, Worker, WorkerStatus
from areal_core.fleet.elastic import ElasticFleet
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.fleet.replica import ReplicaStage
from areal_core.loop.launch import ReplicaLauncher

_LOST_S, _MISSING_S, _MOST_S = 1.0, 15.0, 120.0


@define
class Restarts:
    """Those of one run; `scheduler.restarts` is the most there are."""

    most: int
    number: int = 0
    """How many there were."""

    def allow(self, *, num_steps: int) -> bool:
        """Tell whether a start that made so many steps, and then lost a training worker, gets another after it.

        One that made none would end the same way again; it gets no other, unless it is the first.
        """
        return self.number < self.most and (not self.number or num_steps > 0)

    def allow_waiting(self) -> bool:
        """Tell whether a start that found too little room is tried again: where a machine was lost, one may come."""
        return 0 < self.number < self.most

    def begin(self, error: WorkerError) -> float:
        """Count one more; return the seconds to wait before it, twice as many each time, and more for machines.

        The first start after a worker was lost does not wait.
        """
        self.number += 1
        first_s = _MISSING_S if isinstance(error, ResourceError) else _LOST_S
        return min(first_s * 2.0 ** (self.number - 2), _MOST_S) if self.number > 1 else 0.0


class Site:
    """Satisfies `Scheduler` for one start of a run after another: what it submits ends with it, the fleet may stay."""

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self._scheduler, self._plan = scheduler, plan
        self._roles: list[str] = []
        self.launcher: ReplicaLauncher
        self.fleet: ElasticFleet | None = None
        self.meter: FleetMeter | None = None
        self.kept: list[str] = []  # replicas that serve on while other trainers start; none if all ends with a start

    async def submit(self, job: Job) -> Sequence[Worker]:
        self._roles.append(job.role)
        return await self._scheduler.submit(job)

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        return self._scheduler.poll(role)

    async def cancel(self, role: str) -> None:
        await self._scheduler.cancel(role)

    async def start_pool(self) -> InferencePool:
        """Make the replicas that the plan asks for, unless they are there."""
        if self.fleet is not None:
            return self.fleet.pool
        self.launcher = ReplicaLauncher(self._scheduler, self._plan)
        timeout_s = self._plan.config.rollout.request_timeout_s
        return await self.launcher.start_pool(PoolPolicy(request_timeout_s=timeout_s))

    def keep(self) -> list[str]:
        """Hold the fleet for other trainers, if it can be; return who serves on.

        It cannot be where it is placed beside the trainers, where nobody serves, the scheduler is out of order, or
        engines trace steps, which they count by versions.
        """
        self.kept, fleet, config = [], self.fleet, self._plan.config
        if fleet is not None and config.rollout.placement.together_with is None and not config.profile:
            with suppress(ArealError):
                fleet.check()
                self.kept = [each.id for each in fleet.pool.replicas if each.stage is ReplicaStage.SERVING]
            if self.kept:
                fleet.sync.disconnect()
                self.launcher.room.clear()
        return self.kept

    async def leave(self) -> None:
        """Look after the fleet no more, unless it is kept. Idempotent."""
        if self.fleet is not None and not self.kept:
            await self.fleet.close()

    async def close(self) -> None:
        """End what was submitted here, and where nobody is kept the fleet and the scheduler too. Idempotent."""
        await self.leave()
        roles, self._roles = self._roles, []
        ends = [self.cancel(role) for role in roles] if self.kept else [self._scheduler.close()]
        await asyncio.gather(*ends)
