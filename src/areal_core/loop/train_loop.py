"""The asynchronous training loop: rollouts never stop while the trainer takes its steps.

    rollouts ->  buffer  -> learner -> weight sync -> gate opens one version further
       ^                                    |
       '------------------------------------'

Where both are on the same devices, rollouts do stop: a state is saved in the trainers' turn, before the weights leave.

Knows: the order of one step, what is recorded about it, and how rewards of held-out prompts become one number.
Does not know: how any part does its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs

from areal_core.config.schema import RunConfig
from areal_core.contract.batch import Batch
from areal_core.contract.errors import StorageError
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.task_groups import unless_set
from areal_core.fleet.turns import OwnDevices
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.aside import aside
from areal_core.loop.checkpoint import Checkpoints, Progress
from areal_core.loop.learner import Learns, Update
from areal_core.loop.run_folder import RunFolder
from areal_core.loop.step_record import Count, StepTimes, Totals, step_record
from areal_core.observe.events import EVALUATED, EventLog
from areal_core.observe.metrics import MetricsStream
from areal_core.plugins.episodes import EpisodeStore
from areal_core.plugins.extensions import RunView, Watch
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.stats import RolloutStats

_NOT_SENT = WeightUpdate(version=-1, num_tensors=0, num_bytes=0, unchanged=0, seconds=0.0, phases={})


class Batches(Protocol):
    """Where batches come from: a `RolloutExecutor`, or a store of episodes."""

    async def next_batch(self) -> Sequence[EpisodeGroup]: ...
    def set_version(self, version: int) -> None: ...
    def state(self) -> Mapping[str, Any]: ...  # Any: plain data
    def stats(self) -> RolloutStats: ...


class Weights(Protocol):
    """Where weights go: to a fleet by `WeightSync`, or nowhere."""

    def stepping(self) -> AbstractAsyncContextManager[None]: ...
    async def update(self, version: int) -> WeightUpdate: ...


class Scores(Protocol):
    """What evaluates a version of the policy."""

    async def score(self) -> tuple[Mapping[str, float], int]: ...


@attrs.frozen(kw_only=True)
class Parts:
    """The started parts the loop drives."""

    learner: Learns
    executor: Batches
    meter: FleetMeter
    sync: Weights
    evaluator: Scores | None
    metrics: MetricsStream
    events: EventLog
    view: RunView
    watch: Watch | None = None
    store: EpisodeStore | None = None
    turns: OwnDevices = OwnDevices()


class TrainLoop:
    """Steps of one run, from a started fleet to the last version."""

    def __init__(self, config: RunConfig, folder: RunFolder, parts: Parts, stop: asyncio.Event) -> None:
        self._config, self._parts, self._stop = config, parts, stop
        self._checkpoints = Checkpoints(folder, parts.learner, config.checkpoint, self._tell_saved, self._tell_refused)
        self._trained: int | None = None  # the version of the trainers' weights; within an update they have none
        self._record: Callable[[], dict[str, object]] = dict  # of the step that made it, as things stand
        self._written: Future[None] | None = None  # what the store was told of that step
        self.num_steps = 0

    async def run(self, version: int, totals: Totals) -> int:
        """Train from `version` to the configured number of steps, or until asked to stop.

        A checkpoint is written before the evaluation of its version, so that an evaluation
        that fails costs no training. Returns the version reached; its checkpoint is complete.
        Raises the first error of any part; what is trained is saved before if the engines still answer.
        """
        self._trained = self._checkpoints.saved = version
        try:
            return await self._steps(version, totals)
        except Exception:
            await self._rescue()
            raise
        finally:
            self._checkpoints.drop()

    async def _steps(self, version: int, totals: Totals) -> int:
        if self._config.evaluation.before and version == 0:
            self._parts.view.waiting("the evaluation before the first step")
            await self._evaluate(version)
        await self._parts.meter.read()
        self._count = Count(totals, self._parts.learner, self._parts.meter)
        while version < self._config.steps and not self._stop.is_set():
            times = StepTimes(self._parts.view.waiting)
            with times.measure("wait_s"):
                groups = await unless_set(self._stop, self._parts.executor.next_batch())
            if groups is None:
                break
            await self._train(groups, version, times)
            version += 1
            if not self._parts.turns.shared:
                await self._save(version)
            await self._account(version, groups, times)
        if self._checkpoints.saved != version:
            async with self._trainers():
                await self._checkpoints.save(await self._progress(version))
        return version

    async def _save(self, version: int, *, last: bool = False) -> None:
        """Save the state of a version if it is due; the trainers have their memory."""
        await self._checkpoints.advance()
        if last or version == self._config.steps:
            await self._checkpoints.save(await self._progress(version))
        elif self._checkpoints.due(version):
            await self._checkpoints.begin(await self._progress(version))

    async def _rescue(self) -> None:
        """Save what is trained, if it is whole and the engines answer; not this but what ends the run is told."""
        with suppress(Exception):
            async with self._trainers():
                await self._checkpoints.rescue(None if self._trained is None else await self._progress(self._trained))

    @asynccontextmanager
    async def _trainers(self) -> AsyncIterator[None]:
        """Enclose what needs the trainers' memory outside a step."""
        if not self._parts.turns.shared:
            yield
            return
        async with self._parts.sync.stepping():
            await self._parts.turns.train()
            yield

    async def _train(self, groups: Sequence[EpisodeGroup], version: int, times: StepTimes) -> None:
        """Train on one batch of groups, bring the fleet to the next version, open the gate."""
        episodes = [episode for group in groups for episode in group.episodes]
        self._trained = None
        async with self._parts.sync.stepping():
            await self._parts.turns.train()
            with times.measure("train_s"):
                size = sum(len(trajectory) for episode in episodes for trajectory in episode.trajectories)
                batch = await aside(size, partial(Batch.pack, episodes))
                update = await self._parts.learner.update(batch, version)
            self._trained = version + 1
            self._count.add(groups, update)
            record = partial(self._recorded, version + 1, groups, update, times)
            self._record = partial(record, _NOT_SENT)
            if self._parts.store is not None:
                self._written = self._parts.store.learned(version + 1, update.batch)
            if self._parts.turns.shared:
                await self._save(version + 1, last=self._stop.is_set())
            with times.measure("sync_s"):
                weights = await self._parts.sync.update(version + 1)
        self._record = partial(record, weights)
        self._parts.executor.set_version(version + 1)
        self.num_steps += 1
        self._tell_oddities(version + 1, update, weights)

    def _tell_oddities(self, version: int, update: Update, weights: WeightUpdate) -> None:
        """Write down what is allowed but should be known: a skipped step, weights that did not change."""
        for norm in (report.grad_norm for report in update.reports if not report.stepped):
            self._parts.events.write("step_skipped", version=version, grad_norm=str(norm))
            self._parts.view.note(f"version {version}: gradient norm {norm}, the step was skipped")
        if any(report.stepped for report in update.reports) and 0 < weights.num_tensors == weights.unchanged:
            self._parts.events.write("weights_unchanged", version=version)
        for worker in weights.excluded:
            self._parts.events.write("replica_excluded", worker=worker, version=version)

    def _recorded(
        self, version: int, groups: Sequence[EpisodeGroup], update: Update, times: StepTimes, weights: WeightUpdate
    ) -> dict[str, object]:
        totals, rollout = self._count.totals(), self._parts.executor.stats()
        return step_record(version, groups, update, weights, times, totals, rollout, self._parts.meter.metrics)

    async def _account(self, version: int, groups: Sequence[EpisodeGroup], times: StepTimes) -> None:
        """Evaluate if due, then write down everything about the step that made `version`."""
        due = self._config.evaluation.every_steps
        scores: Mapping[str, float] = {}
        try:
            if version == self._config.steps or (due and version % due == 0):
                with times.measure("eval_s"):
                    scores = await self._evaluate(version)
            if version == self._config.steps:
                await self._parts.meter.read()
        finally:
            record = self._record() | {f"eval_{name}": score for name, score in scores.items()}
            ends = self._parts.watch(record, [group.episodes for group in groups]) if self._parts.watch else None
            self._parts.metrics.write(record)
        self._parts.view.step(record)
        if ends is not None:
            raise ends

    async def _evaluate(self, version: int) -> Mapping[str, float]:
        if self._parts.evaluator is None or self._stop.is_set():
            return {}
        scores, left_out = await self._parts.evaluator.score()
        self._parts.events.write(EVALUATED, version=version, **scores, left_out=left_out)
        without = f", without {left_out} rows that failed or were rejected" if left_out else ""
        told = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        self._parts.view.note(f"version {version}: evaluation {told}{without}")
        return scores

    async def _progress(self, version: int) -> Progress:
        if self._written is not None:
            await asyncio.wrap_future(self._written)
        tasks = {**self._parts.executor.state(), "version": version}  # a fleet without new weights lags behind
        return Progress(version=version, tasks=tasks, totals=self._count.totals().as_dict(), record=self._record())

    def _tell_saved(self, version: int, path: Path) -> None:
        self._parts.events.write("checkpoint", version=version, path=str(path))

    def _tell_refused(self, version: int, error: StorageError) -> None:
        self._parts.events.write("checkpoint_refused", version=version, error=str(error))
        self._parts.view.note(f"version {version} is not saved yet, it is tried again: {error.why}")
