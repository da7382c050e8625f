"""The core's loop with one defect each in what becomes of failures, interruptions and dead replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs

from areal_core.contract.data import Episode
from areal_core.contract.errors import EpisodeFailed, GenerationFailed, NoReplica
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams, VersionSpan
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.replica import Replica
from areal_core.rollout.episodes import Deadline, EpisodeOrder, EpisodeRunner, RowRejected
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.session import PoolSession, PoolSessions
from areal_core.rollout.tasks import Task

from .part import asked, broken


class _ZeroReward(EpisodeRunner):
    """Turns an error into an episode of reward 0."""

    async def run(self, order: EpisodeOrder, deadline: Deadline, *, needed: bool = False) -> tuple[Episode | None, int]:
        try:
            return await super().run(order, deadline, needed=needed)
        except EpisodeFailed:
            other = attrs.evolve(order, row={**order.row, "number": -1})
            episode, tokens = await super().run(other, deadline)
            assert episode is not None
            zero = tuple(attrs.evolve(t, reward=0.0) for t in episode.trajectories)
            return attrs.evolve(episode, trajectories=zero), tokens


class _Silent(EpisodeRunner):
    """Turns an error into a rejection."""

    async def run(self, order: EpisodeOrder, deadline: Deadline, *, needed: bool = False) -> tuple[Episode | None, int]:
        try:
            return await super().run(order, deadline, needed=needed)
        except EpisodeFailed:
            raise RowRejected from None


def _with_runner(executor: RolloutExecutor, kind: type[EpisodeRunner]) -> None:
    own = executor._runner
    executor._runner = kind(
        workflow=own._workflow,
        sessions=own._sessions,
        retries=own._retries,
        timeout_s=own._timeout_s,
        on_event=own.on_event,
    )


@broken(
    "executor", "loop.failures.typed", "loop.failures.too_many", "loop.failures.group_stands_together",
    incident="NeMo-RL#3589", row="failed-is-typed",
)  # fmt: skip
class FailureIsZeroReward(RolloutExecutor):
    """Commits a failed episode with a reward of zero, into the baseline of its group."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _with_runner(self, _ZeroReward)


@broken("executor", "loop.failures.typed", "loop.failures.too_many", row="failed-is-typed")
class FailureIsRejection(RolloutExecutor):
    """Treats an error as if the workflow had rejected the prompt on purpose."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _with_runner(self, _Silent)


@broken("executor", "loop.failures.too_many")
class NeverGivesUp(RolloutExecutor):
    """Goes on however many groups fail."""

    def _fail(self, task: Task, error: EpisodeFailed) -> None:
        self._config = attrs.evolve(self._config, max_failed_share=0.99)
        super()._fail(task, error)


@broken("executor", "loop.failures.retried")
class RetriesNothing(RolloutExecutor):
    """Gives up an episode at the first lost connection."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._runner._retries = 0


@broken("sessions", "loop.failures.retried")
class RetriesWithOtherSeeds(PoolSessions):
    """Draws new seeds for a second try: luck decides which episodes survive."""

    def open(
        self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams | None = None
    ) -> PoolSession:
        return super().open(task_id=task_id, name=name, seed_name=name, sampling=sampling)


class _AnyReward(EpisodeRunner):
    """Lets every reward pass."""

    async def run(self, order: EpisodeOrder, deadline: Deadline, *, needed: bool = False) -> tuple[Episode | None, int]:
        try:
            return await super().run(order, deadline, needed=needed)
        except EpisodeFailed as error:
            if "reward" not in str(error):
                raise
            raise RowRejected from None


@broken("executor", "loop.failures.bad_reward")
class NanIsARejection(RolloutExecutor):
    """Passes over rewards that are no number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _with_runner(self, _AnyReward)


@broken("pool", "loop.pool.dead_fleet", incident="NeMo-RL#3488", row="dead-peer")
class WaitsForADeadFleet(InferencePool):
    """Waits for a replica to come back when all of them are dead."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        while True:
            try:
                return await super().generate(request, affinity=affinity)
            except NoReplica:
                await self.clock.sleep(5.0)


@broken("pool", "loop.pool.dead_fleet", incident="TRL#6913", row="dead-peer")
class HidesWhoDied(InferencePool):
    """Says that something failed, not who nor why."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        try:
            return await super().generate(request, affinity=affinity)
        except NoReplica:
            raise NoReplica("generation failed", why="", fix="") from None


@broken("pool", "loop.pool.failover", "loop.pool.silent_replica", row="dead-peer")
class NoSecondReplica(InferencePool):
    """Fails a request with its replica although another one is there."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        home = self.replicas[hash_of(request) % len(self.replicas)]
        return await asked(home, request, self._policy.request_timeout_s)


def hash_of(request: GenerationRequest) -> int:
    """Return a number that depends on the request's seed."""
    return (request.sampling.seed or 0) & 1


@broken("pool", "loop.pool.silent_replica", incident="verl#7155", row="dead-peer")
class NoDeadline(InferencePool):
    """Waits for an answer as long as it takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._policy = attrs.evolve(self._policy, request_timeout_s=1e6)


@broken("executor", "loop.close.resolves")
class CloseStrandsTheTrainer(RolloutExecutor):
    """Cancels the episodes and leaves who waits for a batch waiting."""

    async def close(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        self._admitting = False
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def next_batch(self) -> list[EpisodeGroup]:
        try:
            return await super().next_batch()
        except Exception:
            if self._admitting:
                raise
            await asyncio.Event().wait()
            raise


@broken("pool", "loop.session.whole", incident="vLLM#48306", row="version-spans")
class LastVersionForAll(InferencePool):
    """Stamps a continued generation with the version that finished it."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        made = await super().generate(request, affinity=affinity)
        span = VersionSpan(start=0, stop=len(made.output_ids), version=made.version_spans[-1].version)
        return attrs.evolve(made, version_spans=(span,))


@broken("pool", "loop.session.whole", incident="verl#6719", row="token-fidelity")
class StartsOverWhenInterrupted(InferencePool):
    """Throws away what an interrupted request had and samples it anew."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        while True:
            part = await self._part_of(request, affinity)
            if part.stop_reason != "aborted":
                return part

    async def _part_of(self, request: GenerationRequest, affinity: Sequence[str]) -> Generation:
        del affinity
        try:
            return await asked(self.replicas[0], request, self._policy.request_timeout_s)
        except GenerationFailed:
            return await asked(self.replicas[-1], request, self._policy.request_timeout_s)


@broken("pool", "loop.pool.turns_elsewhere")
class GoesBackToWhoFailed(InferencePool):
    """Tries the replica a second time that has just failed a request."""

    def _choose(self, affinity: Sequence[str], tried: Sequence[Replica]) -> Replica | None:
        return super()._choose(affinity, () if len(tried) == 1 else tried)


@broken("executor", "loop.close.evaluations")
class CloseLeavesEvaluations(RolloutExecutor):
    """Closes the rollouts and lets evaluations run on."""

    async def close(self) -> None:
        evaluations, self._evaluations = self._evaluations, set()
        try:
            await super().close()
        finally:
            self._evaluations = evaluations
