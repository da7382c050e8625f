"""A run with a teacher: who judges, and what a step makes of it.

Knows: which learner a configuration asks for, and the teacher's fleet where it has one.
Does not know: how a teacher is asked (`scoring_teacher`, `served_teacher`, `top_k`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from areal_core.config.plan import Plan
from areal_core.contract.scheduler import Scheduler
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.loop.launch import ReplicaLauncher, start_train_groups
from areal_core.loop.learner import Learns
from areal_core.loop.run import Run
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_supervised.distill_config import DistillConfig
from areal_supervised.learning import RowLearner
from areal_supervised.scorer import ROLE, ScorerConfig
from areal_supervised.scoring_teacher import ScoringTeacher
from areal_supervised.served_teacher import ServedTeacher
from areal_supervised.top_k import TeacherRole, TopK


class DistillRun(Run):
    """A run of reinforcement learning whose tokens a teacher judges."""

    def __init__(
        self, plan: Plan, registry: Registry, options: DistillConfig, *, view: RunView, stop: asyncio.Event
    ) -> None:
        super().__init__(plan, registry, view=view, stop=stop)
        self._options = options

    async def _learner(self, scheduler: Scheduler) -> Learns:
        options = self._options
        served = None if options.served is None else ServedTeacher(options.served)
        if options.top_k:
            groups = await start_train_groups(scheduler, self._plan)
            method = TopK(served or TeacherRole(groups["reference"]), options.top_k)
            return RowLearner(groups["actor"], self._plan.objective, method, groups.get("reference"))
        starting: list[Any] = [super()._learner(scheduler)]  # Any: a learner, then all that is asked of a teacher
        if options.scorer is not None:
            starting.append(self._scorer(options.scorer, scheduler))
        learner, *scorers = await gather_or_cancel(starting)
        learner.reference = next(filter(None, (*scorers, served)), learner.reference)
        judging: Learns = learner
        return judging

    async def _scorer(self, options: ScorerConfig, scheduler: Scheduler) -> ScoringTeacher:
        """Start the teacher's fleet."""
        launcher = ReplicaLauncher(scheduler, self._plan, ROLE)
        workers = await gather_or_cancel([launcher.place() for _ in range(self._plan.role(ROLE).num_workers)])
        await gather_or_cancel([launcher.start(worker) for worker in workers])
        return ScoringTeacher(
            workers,
            self._config.rollout.sampling.temperature,
            concurrency=options.concurrency,
            timeout_s=self._config.rollout.request_timeout_s,
        )
