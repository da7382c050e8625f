"""A run with a judge: its fleet starts with the others, and is asked about every answer.

Knows: which reward pool the run has.
Does not know: how the judge is asked (`judge_fleet`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from areal_core.config.plan import Plan
from areal_core.contract.scheduler import Scheduler
from areal_core.fleet.pool import PoolPolicy
from areal_core.loop.checkpoint import Progress
from areal_core.loop.launch import ReplicaLauncher
from areal_core.loop.restarts import Site
from areal_core.loop.run import Run
from areal_core.loop.train_loop import Parts
from areal_core.observe.events import EventLog
from areal_core.plugins.extensions import RewardPool, RunView
from areal_core.plugins.registry import Registry
from areal_core.worker.supervise import Supervisor
from areal_supervised.judge_fleet import JudgedRewards, JudgeFleet
from areal_supervised.judged_config import ROLE, JudgedConfig


class JudgedRun(Run):
    """A run of reinforcement learning whose answers a judge scores."""

    def __init__(
        self, plan: Plan, registry: Registry, options: JudgedConfig, *, view: RunView, stop: asyncio.Event
    ) -> None:
        super().__init__(plan, registry, view=view, stop=stop)
        self._options = options
        self._scheduler: Scheduler

    async def _start(
        self,
        stack: AsyncExitStack,
        site: Site,
        supervisor: Supervisor,
        events: EventLog,
        checkpoint: Path | None,
        progress: Progress,
    ) -> Parts:
        """Start as any run; a judge that is lost ends it."""
        self._scheduler = site
        parts = await super()._start(stack, site, supervisor, events, checkpoint, progress)
        supervisor.watch(ROLE)
        return parts

    def _rewards(self, events: EventLog) -> RewardPool:
        """Return the judge, beside the run's own reward if it has one."""
        launcher = ReplicaLauncher(self._scheduler, self._plan, ROLE)
        policy = PoolPolicy(request_timeout_s=self._config.rollout.request_timeout_s)
        fleet = JudgeFleet(
            self._options,
            Path(self._plan.role(ROLE).model.path),
            start_pool=lambda: launcher.start_pool(policy),
            seed=self._config.seed,
        )
        own = super()._rewards(events) if self._config.rollout.reward.name else None
        return JudgedRewards(fleet, own, weight=self._options.weight)
