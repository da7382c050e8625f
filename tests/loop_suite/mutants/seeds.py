"""The core's loop with seeds that depend on what should not matter: company, place, or how often it was begun."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs

from areal_core.contract.ids import TaskId
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.fleet.pool import InferencePool
from areal_core.rollout.session import PoolSession, PoolSessions

from .part import broken


@broken("sessions", "loop.evaluate.no_trace", "loop.tasks.resumed")
class SeedsByCounting(PoolSessions):
    """Numbers its episodes, evaluated ones too, and seeds each by its number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._numbers = itertools.count()

    def open(
        self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams | None = None
    ) -> PoolSession:
        counted = f"episode {next(self._numbers)}"
        return super().open(task_id=task_id, name=name, seed_name=counted, sampling=sampling)


@broken("pool", "loop.pool.any_number")
class SeedsByReplica(InferencePool):
    """Adds the number of the replica to the seed of a request, as servers do that are told none."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        replica = await self._next(affinity, ())
        seed = (request.sampling.seed or 0) + int(replica.id.rpartition("/")[2])
        sampling = attrs.evolve(request.sampling, seed=seed)
        return await super().generate(attrs.evolve(request, sampling=sampling), affinity=affinity)


@broken("sessions", "loop.evaluate.beside")
class EvaluatedRowsShareASeed(PoolSessions):
    """Seeds everything that is evaluated alike."""

    def open(
        self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams | None = None
    ) -> PoolSession:
        shared = "eval" if task_id.startswith("eval/") else seed_name
        return super().open(task_id=task_id, name=name, seed_name=shared, sampling=sampling)
