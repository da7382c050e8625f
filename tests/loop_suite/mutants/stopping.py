"""The core's loop with one defect each in how it stops: on hold, when closed, when an episode is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import attrs

from areal_core.contract.errors import EpisodeFailed, RolloutError
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.fleet.pool import Failures, InferencePool
from areal_core.fleet.replica import Replica
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.session import PoolSession, PoolSessions
from areal_core.rollout.tasks import Task

from .part import Wrapped, broken


@broken("executor", "loop.close.waits", "loop.close.after_failure")
class CancelsAndLeaves(RolloutExecutor):
    """Cancels what runs and returns from close without waiting for its end."""

    async def close(self) -> None:
        self._stop(RolloutError("the executor is closed"))
        for evaluation in self._evaluations:
            evaluation.cancel()


@broken("executor", "loop.close.waits")
class SecondCloseReturns(RolloutExecutor):
    """Takes a close that was begun for one that is done."""

    begun = False

    async def close(self) -> None:
        begun, self.begun = self.begun, True
        if not begun:
            await super().close()


@broken("executor", "loop.close.waits")
class ForgetsEvaluationsInClose(RolloutExecutor):
    """Waits for the rollouts in close, and only cancels the evaluations."""

    async def close(self) -> None:
        evaluations, self._evaluations = self._evaluations, set()
        for evaluation in evaluations:
            evaluation.cancel()
        await super().close()


@broken("executor", "loop.close.after_failure")
class FailedIsClosed(RolloutExecutor):
    """Takes a run that ended with an error for one that is closed."""

    async def close(self) -> None:
        if self._error is None:
            await super().close()


class _Reopens(RolloutExecutor):
    """Admits one group whether or not the run is on hold."""

    def _admit_one(self) -> None:
        if self._admitting or self._error is not None or not self._counts.admitted:
            return
        self._admitting = True
        self._fill()
        self._admitting = False


@broken("executor", "loop.hold.admits_nothing")
class ReplacesRejectedOnHold(_Reopens):
    """Replaces a rejected group although the run is on hold."""

    def _reject(self, task: Task) -> None:
        super()._reject(task)
        self._admit_one()


@broken("executor", "loop.hold.admits_nothing")
class ReplacesFailedOnHold(_Reopens):
    """Replaces a failed group although the run is on hold."""

    def _fail(self, task: Task, error: EpisodeFailed) -> None:
        super()._fail(task, error)
        self._admit_one()


@broken("executor", "loop.hold.admits_nothing")
class NewBatchEndsHold(_Reopens):
    """Begins the next groups when a batch is handed over, on hold or not."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        groups = super()._hand_over(indices, asked)
        self._admit_one()
        return groups


@broken("executor", "loop.hold.admits_nothing")
class NewVersionEndsHold(_Reopens):
    """Begins the next groups when the version moves, on hold or not."""

    def set_version(self, version: int) -> None:
        super().set_version(version)
        self._admit_one()


@broken("pool", "loop.cancel.request", "loop.cancel.siblings")
class RequestsAreShielded(InferencePool):
    """Lets the request of a cancelled episode run on."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        return await asyncio.shield(asyncio.ensure_future(super().generate(request, affinity=affinity)))


@broken("pool", "loop.cancel.request")
class ContinuationsAreShielded(InferencePool):
    """Lets a request run on that was interrupted or failed over before its episode was cancelled."""

    async def _next(self, affinity: Sequence[str], failed: Failures) -> Replica:
        whole = tuple((getattr(replica, "_whole", replica), error) for replica, error in failed)
        return _Shielded(await super()._next(affinity, whole), only_continued=True)  # type: ignore[return-value]


@broken("pool", "loop.cancel.request")
class SecondReplicaIsShielded(InferencePool):
    """Lets a request run on that a second replica has taken over."""

    def _choose(self, affinity: Sequence[str], tried: Sequence[Replica]) -> Replica | None:
        replica = super()._choose(affinity, tried)
        if replica is None or not tried:
            return replica
        return _Shielded(replica)  # type: ignore[return-value]


class _Shielded(Wrapped):
    """A replica whose requests cannot be cancelled."""

    def __init__(self, whole: Replica, only_continued: bool = False) -> None:
        super().__init__(whole)
        self._only_continued = only_continued

    def send(self, request: GenerationRequest, timeout_s: float) -> Awaitable[object]:
        sent = self._whole.send(request, timeout_s)
        return sent if self._only_continued and not request.num_prior else asyncio.shield(asyncio.ensure_future(sent))


class _OneSeed(PoolSession):
    __slots__ = ()

    async def generate(
        self, input_ids: Sequence[int], sampling: SamplingParams | None = None, **more: Any
    ) -> Generation:
        self._num_turns = 0
        return await super().generate(input_ids, sampling, **more)


class _OneSeedOnOverride(PoolSession):
    __slots__ = ()

    async def generate(
        self, input_ids: Sequence[int], sampling: SamplingParams | None = None, **more: Any
    ) -> Generation:
        if sampling is not None:
            self._num_turns = 0
        return await super().generate(input_ids, sampling, **more)


class _SeedOfTheRun(PoolSession):
    __slots__ = ()

    async def generate(
        self, input_ids: Sequence[int], sampling: SamplingParams | None = None, **more: Any
    ) -> Generation:
        own = self.sampling
        if sampling is not None or own.seed is None:
            return await super().generate(input_ids, sampling, **more)
        self.sampling = attrs.evolve(own, seed=None)
        try:
            return await super().generate(input_ids, own, **more)
        finally:
            self.sampling = own


class _Sessions(PoolSessions):
    kind: type[PoolSession] = PoolSession

    def open(self, **names: Any) -> PoolSession:  # Any: as PoolSessions.open
        session = super().open(**names)
        session.__class__ = self.kind
        return session


@broken("sessions", "loop.session.turns_differ")
class TurnsShareSeed(_Sessions):
    """Samples every turn of an episode with the seed of the first."""

    kind = _OneSeed


@broken("sessions", "loop.session.turns_differ")
class OverridesShareSeed(_Sessions):
    """Samples every turn a workflow has parameters for with one seed."""

    kind = _OneSeedOnOverride


@broken("sessions", "loop.session.turns_differ")
class RunSeedForEveryTurn(_Sessions):
    """Gives the seed of the run's parameters to every request as it is."""

    kind = _SeedOfTheRun


@broken("sessions", "loop.session.turns_differ")
class EpochsShareSeed(_Sessions):
    """Leaves the epoch out of the seed: a prompt is answered with the same samples each time."""

    def open(self, **names: Any) -> PoolSession:  # Any: as PoolSessions.open
        seed_name = "/".join(part for number, part in enumerate(names["seed_name"].split("/")) if number != 1)
        return super().open(**{**names, "seed_name": seed_name})
