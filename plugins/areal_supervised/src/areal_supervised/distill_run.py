"""A run with a teacher: who judges, and what a step makes of it.

Knows: which learner a configuration asks for.
Does not know: how a teacher is asked (`served_teacher`, `top_k`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from areal_core.config.plan import Plan
from areal_core.contract.scheduler import Scheduler
from areal_core.loop.learner import Learns
from areal_core.loop.run import Run
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_supervised.learning import RowLearner
from areal_supervised.served_teacher import ServedTeacher, ServedTeacherConfig
from areal_supervised.top_k import TeacherRole, TopK


class DistillRun(Run):
    """A run of reinforcement learning whose tokens a teacher judges."""

    def __init__(
        self,
        plan: Plan,
        registry: Registry,
        served: ServedTeacherConfig | None,
        top_k: int,
        *,
        view: RunView,
        stop: asyncio.Event,
    ) -> None:
        """Ask a served teacher, or without one the role `reference`, about the token drawn or about `top_k`."""
        super().__init__(plan, registry, view=view, stop=stop)
        self._served, self._top_k = served, top_k

    async def _learner(self, scheduler: Scheduler) -> Learns:
        served = ServedTeacher(self._served) if self._served is not None else None
        if self._top_k:
            groups = await self._train_groups(scheduler)
            method = TopK(served or TeacherRole(groups["reference"]), self._top_k)
            return RowLearner(groups["actor"], self._plan.objective, method, groups.get("reference"))
        learner = await super()._learner(scheduler)
        if served is not None:
            judge: Any = served  # Any: all that is asked of a frozen role is `forward`
            learner.reference = judge
        return learner
