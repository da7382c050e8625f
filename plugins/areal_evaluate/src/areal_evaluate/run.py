"""One whole evaluation: open everything, start replicas, make the samples that are missing, score, close all.

Knows: the order in which parts start and end, and what is in flight.
Does not know: how a sample is made (`areal_core.rollout`), or how anything is shown.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from areal_core.config.model_folder import load_tokenizer
from areal_core.contract.errors import EpisodeFailed, StorageError, storage_errors
from areal_core.contract.scheduler import Scheduler
from areal_core.contract.weights import WeightTransport
from areal_core.contract.workflow import Tokenizer
from areal_core.fleet.elastic import ElasticFleet, tell_news
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.fleet.task_groups import gather_or_cancel, unless_set
from areal_core.fleet.weight_sync import WeightSync
from areal_core.loop.launch import ReplicaLauncher, make_scheduler
from areal_core.observe.events import RUN_ENDED, RUN_STARTED, EventLog
from areal_core.plugins.extensions import RewardPool, RunView
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure
from areal_core.rollout.episodes import too_many
from areal_core.rollout.groups import episode_reward
from areal_core.worker.supervise import Supervisor
from areal_evaluate.benchmark import Benchmark
from areal_evaluate.plan import EvaluationPlan
from areal_evaluate.samples import SampleId, agree, check_free, read_samples
from areal_evaluate.summary import Score, score

_Work = Iterator[tuple[Benchmark, SampleId]]


class EvaluationView(RunView, Protocol):
    """Who watches an evaluation: the terminal, or nobody."""

    def scored(self, benchmark: str, done: int, of: int, mean: float) -> None:
        """Hear how many samples of a benchmark are there, and the mean reward of those made just now."""


@frozen(kw_only=True)
class Evaluated:
    """How an evaluation ended.

    Example: Evaluated(folder=Path("runs/evaluation"), finished=True, failed=0, scores={"spell": Score(...)},
        confidence=0.95)
    """

    folder: Path
    finished: bool
    """Whether every sample that was asked for was made; False if somebody stopped it."""
    failed: int
    """Samples whose workflow or reward failed. Their prompts do not count; `resume` makes them again."""
    scores: Mapping[str, Score]
    confidence: float


class Evaluation:
    """One evaluation of one plan. `execute` is all there is to call, once."""

    def __init__(self, plan: EvaluationPlan, registry: Registry, *, view: EvaluationView, stop: asyncio.Event) -> None:
        self._plan, self._registry, self._view, self._stop = plan, registry, view, stop
        self._folder = plan.folder
        self._benchmarks = [Benchmark(each, registry, view=view) for each in plan.benchmarks]
        self._failed = 0
        self._done: dict[str, int] = defaultdict(int)
        self._rewards: dict[str, list[float]] = defaultdict(list)

    async def execute(self, *, resume: bool = False) -> Evaluated:
        """Make the samples that are not there, and score all; until `stop` at most.

        Args:
            resume: go on with the samples in the output folder.

        Raises:
            EpisodeFailed: more than `rollout.max_failed_share` of the samples failed.
            ArealError: the first error of any part. Samples made before stay, and `resume` goes on after them.
        """
        root = self._folder.root
        with self._folder.held(resume=False):
            check_free(root, resume=resume)
            with closing(EventLog(self._folder.events)) as events:
                self._view.waiting("the data sets")
                tokenizer = load_tokenizer(self._plan.engine.role("rollout").model.path)
                for each in self._benchmarks:
                    await each.open(tokenizer, events)
                agree(root, self._identity(), resume=resume)
                scores, status = await self._recorded(tokenizer, events, resume)
        return Evaluated(
            folder=root,
            finished=status == "finished",
            failed=self._failed,
            scores=scores,
            confidence=self._plan.confidence,
        )

    async def _recorded(self, tokenizer: Tokenizer, events: EventLog, resume: bool) -> tuple[Mapping[str, Score], str]:
        """Generate, and whatever happens score what is there; return the scores and how it ended."""
        names, backend = [each.name for each in self._benchmarks], str(self._plan.engine.role("rollout").backend)
        events.write(RUN_STARTED, name=self._plan.name, infer_backend=backend, benchmarks=names, resumed=resume)
        status = "failed"
        try:
            if missing := self._missing():
                await unless_set(self._stop, self._start_and_generate(missing, tokenizer, events))
            status = "finished" if self._is_whole() else "stopped"
        except asyncio.CancelledError:
            status = "stopped"
            raise
        finally:
            scores = self._end(events, status)
        return scores, status

    def _is_whole(self) -> bool:
        """Tell whether every sample was made; False after a stop.

        Raises:
            StorageError: samples that were made are not there.
        """
        missing = len(self._missing()) - self._failed
        if missing and not self._stop.is_set():
            raise StorageError(
                f"{missing} samples are not in the store of {self._folder.root}",
                why="they were made and could not be kept: see episode_not_kept in events.jsonl",
                fix="correct what the workflow puts into episodes, then --resume",
            )
        return not missing

    def _end(self, events: EventLog, status: str) -> Mapping[str, Score]:
        """Score what is there and write it down."""
        samples, confidence = read_samples(self._folder.root), self._plan.confidence
        scores = {
            each.name: score(each.planned, confidence, len(each.rows), each.left_out, samples)
            for each in self._benchmarks
        }
        role = self._plan.engine.role("rollout")
        told = {
            "name": self._plan.name,
            "status": status,
            "model": str(role.model.path),
            "backend": str(role.backend),
            "seed": self._plan.seed,
            "failed": self._failed,
            "confidence": confidence,
            "benchmarks": unstructure(scores),
        }
        events.write(RUN_ENDED, status=status)
        with storage_errors(self._folder.summary):
            self._folder.summary.write_text(json.dumps(told, indent=2) + "\n")
        return scores

    async def _start_and_generate(
        self, missing: Sequence[tuple[Benchmark, SampleId]], tokenizer: Tokenizer, events: EventLog
    ) -> None:
        """Start rewards and replicas, make samples, and close everything in the reverse order."""
        async with AsyncExitStack() as stack:
            self._view.waiting("the reward functions to be built")
            rewards = await self._reward_pools(stack, events)
            scheduler = make_scheduler(self._plan.engine.config, self._registry, self._folder.logs)
            stack.push_async_callback(scheduler.close)
            supervisor = Supervisor(scheduler)
            self._view.waiting(f"replicas to start: {self._plan.engine.role('rollout').backend}")
            pool = await self._start_pool(stack, scheduler, supervisor, events)
            store = self._benchmarks[0].episode_store(tokenizer, events)
            stack.callback(store.close)
            supervisor.watch_with(store.check)
            for each, reward in zip(self._benchmarks, rewards, strict=True):
                each.connect(pool, reward, tokenizer, events, store)
            self._view.waiting("samples")
            await self._generate(missing, supervisor)

    async def _reward_pools(self, stack: AsyncExitStack, events: EventLog) -> Sequence[RewardPool]:
        """Return the started pool of each benchmark; those with the same reward share one."""
        pools: dict[str, RewardPool] = {}
        keys = []
        for each in self._benchmarks:
            key, pool = each.reward_pool(events)
            keys.append(key)
            if pools.setdefault(key, pool) is pool:
                stack.push_async_callback(pool.close)
        await gather_or_cancel([pool.start() for pool in pools.values()])
        return [pools[key] for key in keys]

    async def _start_pool(
        self, stack: AsyncExitStack, scheduler: Scheduler, supervisor: Supervisor, events: EventLog
    ) -> InferencePool:
        """Start the replicas, and what replaces those that are lost: all serve the weights they started with."""
        plan, rollout = self._plan.engine, self._plan.engine.config.rollout
        launcher = ReplicaLauncher(scheduler, plan)
        pool = await launcher.start_pool(PoolPolicy(request_timeout_s=rollout.request_timeout_s))
        transport = self._registry.build("transport", "shm", {})  # nothing is ever sent
        assert isinstance(transport, WeightTransport)
        stack.callback(transport.close)
        fleet = ElasticFleet(
            pool=pool,
            sync=WeightSync(trainers=(), pool=pool, transport=transport, pause=None, timeout_s=1.0),
            launcher=launcher,
            max_replacements=rollout.max_replacements,
            tell=partial(tell_news, events, self._view),
        )
        stack.push_async_callback(fleet.close)
        fleet.start()
        supervisor.watch_with(fleet.check)
        return pool

    async def _generate(self, missing: Sequence[tuple[Benchmark, SampleId]], supervisor: Supervisor) -> None:
        """Make samples, so many at once.

        Raises:
            ArealError: what ended a part, else that too many samples failed; samples in flight are cancelled.
        """
        for each in self._benchmarks:
            self._done[each.name] = each.num_samples - sum(benchmark is each for benchmark, _ in missing)
        number = min(self._plan.max_concurrent, len(missing))
        making = asyncio.ensure_future(self._all(iter(missing), number))
        failing = asyncio.ensure_future(supervisor.failed())
        try:
            await asyncio.wait({making, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
            if making.exception() is not None:
                supervisor.check()
            making.result()
        finally:
            for task in (making, failing):
                task.cancel()
            await asyncio.gather(making, failing, return_exceptions=True)

    async def _all(self, work: _Work, number: int) -> None:
        try:
            async with asyncio.TaskGroup() as scope:
                for _ in range(number):
                    scope.create_task(self._some(work))
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__

    async def _some(self, work: _Work) -> None:
        """Make one sample after another until none is left."""
        for benchmark, sample in work:
            runner, order = benchmark.runner, benchmark.order(sample)
            rewards, episode = self._rewards[benchmark.name], None
            try:
                async with runner.deadline(order.task_id) as deadline:
                    episode, _ = await runner.run(order, deadline)
            except EpisodeFailed as error:
                self._bear(error, benchmark, sample)
            if episode is not None:
                rewards.append(episode_reward(episode))
            self._done[benchmark.name] += 1
            mean = sum(rewards) / max(1, len(rewards))
            self._view.scored(benchmark.name, self._done[benchmark.name], benchmark.num_samples, mean)

    def _bear(self, error: EpisodeFailed, benchmark: Benchmark, sample: SampleId) -> None:
        """Count and tell a sample that failed; too many end the evaluation."""
        self._failed += 1
        benchmark.runner.on_event("evaluation_failed", task_id=sample.task_id, member=sample.member, error=str(error))
        asked = sum(each.num_samples for each in self._benchmarks)
        share = self._plan.engine.config.rollout.max_failed_share
        if self._failed > share * asked:
            raise too_many(error, self._failed, f"{asked} samples", share) from error.__cause__

    def _missing(self) -> list[tuple[Benchmark, SampleId]]:
        """Return the samples that are asked for and not in the folder, in order."""
        there = read_samples(self._folder.root)
        return [(each, sample) for each in self._benchmarks for sample in each.sample_ids() if sample not in there]

    def _identity(self) -> Mapping[str, Any]:
        """Return what samples are of. Any: plain data."""
        role, config = self._plan.engine.role("rollout"), self._plan.engine.config
        weights = sorted(role.model.path.glob("*.safetensors"))
        model = {
            "path": str(role.model.path.absolute()),
            "weights": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in weights],
            "backend": role.backend.name,
            "dtype": role.dtype,
            "context_length": config.rollout.context_length,
            "seed": config.seed,
        }
        return {"model": model, "benchmarks": {each.name: each.identity() for each in self._benchmarks}}
