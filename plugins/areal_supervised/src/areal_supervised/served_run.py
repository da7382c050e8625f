"""A run whose teacher is a server that is there already.

Knows: where the learner asks for log-probs of another model.
Does not know: how the server is asked (`served_teacher`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from areal_core.config.plan import Plan
from areal_core.contract.scheduler import Scheduler
from areal_core.loop.learner import Learner
from areal_core.loop.run import Run
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_supervised.served_teacher import ServedTeacher, ServedTeacherConfig


class ServedTeacherRun(Run):
    """A run of reinforcement learning whose tokens a server judges."""

    def __init__(
        self, plan: Plan, registry: Registry, served: ServedTeacherConfig, *, view: RunView, stop: asyncio.Event
    ) -> None:
        super().__init__(plan, registry, view=view, stop=stop)
        self._served = served

    async def _learner(self, scheduler: Scheduler) -> Learner:
        learner = await super()._learner(scheduler)
        teacher: Any = ServedTeacher(self._served)  # Any: all that is asked of a frozen role is `forward`
        learner.reference = teacher
        return learner
