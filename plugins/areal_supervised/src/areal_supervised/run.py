"""A run that learns from rows: training roles, and nothing that generates.

Knows: which parts of a run it has, and which numbers of a step mean nothing here.
Does not know: what a kind minimises (`kinds`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.config.model_folder import load_tokenizer
from areal_core.config.plan import Plan
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.checkpoint import Progress, restore, save_beginning
from areal_core.loop.launch import start_train_groups
from areal_core.loop.learner import Update
from areal_core.loop.restarts import Site
from areal_core.loop.run import Run
from areal_core.loop.step_record import PARTS, StepTimes
from areal_core.loop.train_loop import Parts, TrainLoop
from areal_core.observe.events import EventLog
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.tasks import TaskSource
from areal_core.worker.supervise import Supervisor
from areal_supervised.batches import RowBatches
from areal_supervised.config import SupervisedConfig
from areal_supervised.learning import HeldOutRows, Method, RowLearner
from areal_supervised.rows import Encode, Encoder, named

_OF_ROLLOUTS = frozenset(
    {"reward", "tokens_generated", "infer_busy_s", "infer_wall_s", "staleness_mean", "staleness_max"}
    | {"staleness_histogram", "in_flight", "buffered", "failed", "dropped", "weights", "sync_bytes"}
    | {"sync_unchanged", "sync_tensors", "sync_s"}
)


@frozen(kw_only=True)
class Lesson:
    """What a kind takes of a row, and what it computes of a batch."""

    config: SupervisedConfig
    encode: Encode
    method: Method


class RowLoop(TrainLoop):
    """Steps on rows. Their records hold no number of rollouts."""

    def _recorded(
        self, version: int, groups: Sequence[EpisodeGroup], update: Update, times: StepTimes, weights: WeightUpdate
    ) -> dict[str, object]:
        record = super()._recorded(version, groups, update, times, weights)
        return {name: value for name, value in record.items() if name not in _OF_ROLLOUTS}


class RowRun(Run):
    """One run on rows. `execute` is all there is to call, once."""

    _loop = RowLoop

    def __init__(self, plan: Plan, registry: Registry, lesson: Lesson, *, view: RunView, stop: asyncio.Event) -> None:
        super().__init__(plan, registry, view=view, stop=stop)
        self._lesson = lesson

    def _described(self) -> Mapping[str, Any]:
        return {"run_kind": self._config.kind, "train_backend": str(self._plan.role("actor").backend)}

    async def _start(
        self,
        stack: AsyncExitStack,
        site: Site,
        supervisor: Supervisor,
        events: EventLog,
        checkpoint: Path | None,
        progress: Progress,
    ) -> Parts:
        """Start the training roles; read the data meanwhile."""
        config, options = self._config, self._lesson.config
        self._view.waiting("the data set")
        model = self._plan.role("actor").model
        longest = min(self._longest(model.context_length), options.max_length or 1 << 62)
        encoder = Encoder(self._lesson.encode, load_tokenizer(model.path), options, longest)
        source = TaskSource(self._rows(config.data), seed=config.seed, shuffle=config.data.shuffle)
        batches = RowBatches(source, encoder, options.batch_size, version=progress.version, tell=self._teller(events))
        if progress.tasks:
            source.restore(progress.tasks["tasks"])
        if progress.version == 0:
            save_beginning(self._folder, batches.state())
        held_out = self._encoded(encoder)
        metrics = self._metrics(stack, events, progress)
        self._view.waiting("workers to start: " + ", ".join(f"{role.role} {role.backend}" for role in self._plan.roles))
        groups = await start_train_groups(site, self._plan)
        objective, method = self._plan.objective, self._lesson.method
        learner = RowLearner(groups["actor"], objective, method, groups.get("reference"))
        if checkpoint is not None:
            self._view.waiting(f"the state of {checkpoint.name}")
            await restore(checkpoint, learner, progress)
        kept = [episode for episode in held_out if episode is not None]
        return Parts(
            learner=learner,
            executor=batches,
            meter=FleetMeter(InferencePool([])),
            sync=Nowhere(),
            evaluator=HeldOutRows(learner, kept, options.batch_size, len(held_out) - len(kept)) if kept else None,
            metrics=metrics,
            events=events,
            view=RowView(self._view),
        )

    def _encoded(self, encoder: Encoder) -> list[Any]:  # Any: an episode, or None for a row that is too long
        config = self._config.evaluation
        rows = self._rows(config.data)
        return [encoder.episode(named(number, rows[number])) for number in range(min(config.max_prompts, len(rows)))]

    def _teller(self, events: EventLog) -> Any:  # Any: as `EventLog.write`
        def tell(kind: str, **fields: Any) -> None:  # Any: JSON
            events.write(kind, **fields)
            self._view.note(f"warning: {fields['says']}; try: {fields['advice']}")

        return tell


class RowView:
    """Satisfies `areal_core.plugins.extensions.RunView`: what a step waits for are rows."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.step, self.note = view.step, view.note

    def waiting(self, what: str) -> None:
        """Tell it in the words of this kind of run."""
        self._view.waiting("rows" if what == PARTS["wait_s"] else what)


class Nowhere:
    """Satisfies `areal_core.loop.train_loop.Weights`: there is no fleet."""

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Enclose a step: nobody asks for weights."""
        yield

    async def update(self, version: int) -> WeightUpdate:
        """Send nothing."""
        return WeightUpdate(version=version, num_tensors=0, num_bytes=0, unchanged=0, seconds=0.0, phases={})
