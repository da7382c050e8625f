"""A whole run in this process: real engines, real store, no worker processes. Seconds instead of half a minute.

Knows: the contract of a scheduler and of a worker, as hosts answer it.
Does not know: how workers die, or what they are kept apart from.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_conformance.benches.pair_workers import InProcessWorker
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.scheduler import Job, WorkerState, WorkerStatus
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_core.loop.run import Run, RunOutcome
from areal_core.plugins.registry import default_registry
from areal_worker.service import InferenceHost, Place, TrainHost

FILE = Path(__file__).with_name("one_process.yaml")


class OneProcess:
    """Satisfies `contract.Scheduler`: workers are objects."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._roles: dict[str, list[InProcessWorker]] = {}

    async def submit(self, job: Job) -> Sequence[InProcessWorker]:
        host = {"train": TrainHost, "infer": InferenceHost}[job.engine_role]
        names = [f"{job.role}/{rank}" for rank in range(job.num_workers)]
        self._roles[job.role] = [
            InProcessWorker(name, host(Place(worker=name, backend=job.backend)), self._starting) for name in names
        ]
        return self._roles[job.role]

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        return [
            WorkerStatus(id=worker.id, role=role, rank=rank, state=WorkerState.RUNNING)
            for rank, worker in enumerate(self._roles[role])
        ]

    async def cancel(self, role: str) -> None:
        for worker in self._roles.pop(role, ()):
            await worker.service.close()

    async def close(self) -> None:
        for role in list(self._roles):
            await self.cancel(role)


class Letters:
    """A reward pool that pays for letters that differ, so that hardly two answers are worth the same."""

    async def start(self) -> None:
        """Nothing to build."""

    async def score(self, value: RewardInput) -> RewardResult:
        return RewardResult(value=len(set(value.completion)) / 16)

    async def close(self) -> None:
        """Nothing to end."""


class Silent:
    """A `RunView` that shows nothing."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Any: what `metrics.jsonl` got."""

    def note(self, text: str) -> None:
        """Nobody watches."""

    def waiting(self, what: str) -> None:
        """Nobody watches."""


def settle_here(patch: pytest.MonkeyPatch) -> None:
    """Have runs, replays too, start their workers in this process."""
    patch.setattr("areal_core.loop.run.make_scheduler", lambda config, registry, logs: OneProcess())
    patch.setattr(Run, "_rewards", lambda run, events: Letters())


def train_here(folder: Path, model: Path, *overrides: str) -> RunOutcome:
    """Run to the end; after `settle_here`."""
    return _run(FILE, False, f"model.path={model}", f"out={folder}", *overrides)


def resume_here(folder: Path, *overrides: str) -> RunOutcome:
    """Go on from the last checkpoint in a run folder; after `settle_here`."""
    return _run(folder / "config.yaml", True, *overrides)


def _run(file: Path, resume: bool, *overrides: str) -> RunOutcome:
    registry = default_registry()
    plan = make_plan(load_config(file, overrides), registry, {})
    outcome = asyncio.run(Run(plan, registry, view=Silent(), stop=asyncio.Event()).execute(resume=resume))
    assert not gc.get_freeze_count(), "what a run made cannot be collected after it"
    return outcome
