"""The parts of one benchmark, made as a run makes its own: rows, workflow, reward, sessions.

Knows: which of a run's parts generating and scoring need, and the names of samples.
Does not know: other benchmarks, or in which order samples are made (`run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_core.config.schema import DataConfig
from areal_core.contract.ids import TaskId
from areal_core.contract.workflow import RolloutWorkflow, Tokenizer
from areal_core.fleet.pool import InferencePool
from areal_core.loop.run import Rows, Run
from areal_core.observe.events import EventLog
from areal_core.plugins.episodes import EpisodeStore
from areal_core.plugins.extensions import RewardPool, RunView
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure
from areal_core.rollout.episodes import EpisodeOrder, EpisodeRunner
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource
from areal_evaluate.plan import BenchmarkPlan
from areal_evaluate.samples import SampleId

_NO_LIMIT = 1 << 40


class Benchmark(Run):
    """One benchmark. It is part of an evaluation and never executed by itself."""

    workflow: RolloutWorkflow
    rows: Rows = ()
    runner: EpisodeRunner

    def __init__(self, plan: BenchmarkPlan, registry: Registry, *, view: RunView) -> None:
        super().__init__(plan.plan, registry, view=view, stop=asyncio.Event())
        self.planned, self.name = plan, plan.name
        self._num_rows = 0

    async def open(self, tokenizer: Tokenizer, events: EventLog) -> None:
        """Read the rows and leave out prompts that are too long, before anything starts.

        Raises:
            DatasetError: there are no rows, they cannot be read, or all are too long.
        """
        self.workflow, self.rows, _ = await self._data(tokenizer, events)

    @property
    def left_out(self) -> int:
        """Return how many prompts leave no room for an answer."""
        return self._num_rows - len(self.rows)

    @property
    def num_samples(self) -> int:
        """Return how many samples are asked for."""
        return len(self.rows) * self.planned.samples

    def connect(
        self, pool: InferencePool, rewards: RewardPool, tokenizer: Tokenizer, events: EventLog, store: EpisodeStore
    ) -> None:
        """Take what all benchmarks share."""
        rollout = self._config.rollout
        sessions = PoolSessions(
            pool=pool,
            rewards=rewards,
            tokenizer=tokenizer,
            sampling=self.planned.sampling,
            seed=self._config.seed,
            image_token_id=self._plan.role("rollout").model.image_token_id,
        )
        self.runner = EpisodeRunner(
            workflow=self.workflow,
            sessions=sessions,
            retries=rollout.retries,
            timeout_s=rollout.episode_timeout_s,
            on_event=events.write,
            store=store,
        )

    def reward_pool(self, events: EventLog) -> tuple[str, RewardPool]:
        """Return the reward's pool, not started, and a key that benchmarks with the same reward share."""
        return repr(unstructure(self._config.rollout.reward)), self._rewards(events)

    def episode_store(self, tokenizer: Tokenizer, events: EventLog) -> EpisodeStore:
        """Open the store of the output folder."""
        store = self._store(tokenizer, events)
        assert store is not None, "this package depends on one that offers a store"
        return store

    def sample_ids(self) -> Iterator[SampleId]:
        """Yield every sample that is asked for, all of a prompt one after the other."""
        for index in range(len(self.rows)):
            for member in range(self.planned.samples):
                yield SampleId(self.name, index, member)

    def order(self, sample: SampleId) -> EpisodeOrder:
        """Return what makes one sample: the same seeds whenever and beside whatever it is made."""
        return EpisodeOrder(
            task_id=TaskId(sample.task_id),
            member=sample.member,
            row=self.rows[sample.index],
            seed_name=f"{sample.task_id}#{sample.member}",
        )

    def identity(self) -> Mapping[str, Any]:
        """Return what has to stay the same if samples are to be of one benchmark. Any: plain data."""
        chosen, rows = self._config, TaskSource(self.rows, seed=self._config.seed, shuffle=False).state()
        return {
            "data": unstructure(chosen.data),
            "workflow": unstructure(chosen.rollout.workflow),
            "reward": {key: unstructure(chosen.rollout.reward)[key] for key in ("name", "options")},
            "sampling": unstructure(self.planned.sampling),
            "rows": rows["rows"],
            "sample of the rows": rows["sample"],
        }

    def _rows(self, data: DataConfig | None) -> Rows:
        if data is None:
            return ()
        rows: Sequence[Mapping[str, Any]] = super()._rows(data)  # Any: as there
        if 0 < self.planned.max_prompts < len(rows):
            rows = [rows[number] for number in range(self.planned.max_prompts)]
        self._num_rows = len(rows)
        return rows

    def _longest(self, context: int | None) -> int:
        return context or _NO_LIMIT
