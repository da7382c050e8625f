"""The core's loop with one defect each in what is trained on, when, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Episode
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import SamplingParams
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.session import PoolSession, PoolSessions
from areal_core.rollout.staleness import DroppingGate, Flight, StalenessGate
from areal_core.rollout.tasks import Task, TaskSource

from .part import broken


def _gated(kind: Callable[..., StalenessGate], executor: RolloutExecutor) -> StalenessGate:
    """Return a gate of another kind with the settings of the executor's own."""
    own = executor._gate
    return kind(
        prompts_per_step=own.prompts_per_step,
        max_staleness=own.max_staleness,
        max_concurrent=own.max_concurrent,
        version=own.version,
    )


class _RunsAhead(StalenessGate):
    def _allowance(self) -> int:
        return super()._allowance() + 3 * self.prompts_per_step

    def _choose(self) -> list[Flight] | None:
        finished = sorted((f for f in self._flights.values() if f.oldest is not None), key=lambda f: f.index)
        chosen = finished[: self.prompts_per_step]
        return chosen if len(chosen) == self.prompts_per_step else None

    def _check(self, flight: Flight) -> None:
        """Look at nothing."""


@broken(
    "executor", "loop.staleness.bound", "loop.gate.capacity", "loop.machine.staleness",
    incident="AReaL#1388", row="staleness-bound",
)  # fmt: skip
class BoundsOnlyTheSum(RolloutExecutor):
    """Admits more than the bound can use and hands over whatever finished first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(self._gate, DroppingGate):
            self._gate = _gated(_RunsAhead, self)


class _NewestCounts(DroppingGate):
    def finish(self, index: int, oldest: int | None) -> bool:
        return super().finish(index, self.version if oldest is not None else None)


@broken("executor", "loop.staleness.drop", row="staleness-bound")
class AgesByNewestToken(RolloutExecutor):
    """Takes the age of a group from the version it finished under, not from its oldest token."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if isinstance(self._gate, DroppingGate):
            self._gate = _gated(_NewestCounts, self)


@broken("executor", "loop.staleness.resume", incident="AReaL#1388", row="staleness-bound")
class ForgetsVersionOnResume(RolloutExecutor):
    """Counts from version 0 again after a resume, so that the gate lets too many through."""

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        version = self._gate.version
        self._gate.version = self._gate._origin = 0
        self._gate._admitted = -version * self._gate.prompts_per_step


class _ManyPerVersion(StalenessGate):
    def take(self) -> list[int] | None:
        self._handed_over = False
        return super().take()

    def _allowance(self) -> int:
        return 2 * super()._allowance() + self.prompts_per_step


@broken("executor", "loop.staleness.one_batch", incident="miles#1697", row="staleness-bound")
class ManyBatchesPerVersion(RolloutExecutor):
    """Hands over as many batches per version as are finished."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(self._gate, DroppingGate):
            self._gate = _gated(_ManyPerVersion, self)


@broken("executor", "loop.staleness.truth")
class ReportsStalenessOfNewest(RolloutExecutor):
    """Reports how old the newest token of an episode is, as if the older ones did not count."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        version = self._gate.version
        return [
            attrs.evolve(group, staleness=tuple(version - episode.newest_version for episode in group.episodes))
            for group in super()._hand_over(indices, asked)
        ]


@broken("executor", "loop.gate.capacity")
class IgnoresMaxConcurrent(RolloutExecutor):
    """Runs as many groups at once as the staleness bound allows, whatever the fleet was said to bear."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._gate.max_concurrent = self._gate.capacity


@broken("executor", "loop.synchronous.at_zero", "loop.gate.capacity", incident="verl#6780", row="synchronous-at-zero")
class OneBatchAhead(RolloutExecutor):
    """Generates the next batch while this one is trained on, also where the bound is 0."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._gate.max_staleness += 1


@broken(
    "executor", "loop.order.of_tasks", "loop.synchronous.at_zero", incident="verl#6780", row="synchronous-at-zero"
)  # fmt: skip
class BatchesInCompletionOrder(RolloutExecutor):
    """Puts a batch together in the order its groups finished."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        return super()._hand_over([index for index in self._buffer._items if index in set(indices)], asked)


class _ShortestFirst(StalenessGate):
    def _allowance(self) -> int:
        return 100

    def _choose(self) -> list[Flight] | None:
        finished = [f for f in self._flights.values() if f.oldest is not None]
        return finished[: self.prompts_per_step] if len(finished) >= self.prompts_per_step else None

    def _check(self, flight: Flight) -> None:
        """Look at nothing."""


@broken(
    "executor", "loop.distribution.waits", "loop.staleness.bound", incident="NeMo-RL#3599", row="trained-as-submitted"
)  # fmt: skip
class TakesWhatIsFinished(RolloutExecutor):
    """Trains on whatever finished, so that long episodes are put off for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(self._gate, DroppingGate):
            self._gate = _gated(_ShortestFirst, self)


@broken("executor", "loop.distribution.dynamic")
class FillsDynamicBatches(RolloutExecutor):
    """Gives the place of a group that is left out to another, whatever the batch was said to be."""

    def __init__(self, *, config: RolloutConfig, **options: Any) -> None:
        super().__init__(config=attrs.evolve(config, dynamic_batch=False), **options)


@broken("executor", "loop.distribution.dynamic", incident="AReaL dynamic_bs", row="trained-as-submitted")
class ForgetsTheRestOfABatch(RolloutExecutor):
    """Drops what was accepted of a dynamic batch beyond its first group, and counts it as trained."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        groups = super()._hand_over(indices, asked)
        return groups if len(groups) == len(indices) else groups[:1]


class _KeepsPlaces(StalenessGate):
    def discard(self, num_groups: int) -> None:
        self._handed_over = False


@broken("executor", "loop.distribution.dynamic", "loop.machine.staleness")
class EmptyBatchKeepsItsPlaces(RolloutExecutor):
    """Gives nobody the places of a batch of which nothing is left: the trainer waits for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(self._gate, DroppingGate):
            self._gate = _gated(_KeepsPlaces, self)


@broken(
    "executor", "loop.distribution.waits", "loop.straggler.delays_itself",
    incident="tinker-cookbook#822", row="trained-as-submitted",
)  # fmt: skip
class DiscardsStragglers(RolloutExecutor):
    """Gives up what still runs when a batch is full: slow prompts are never trained on."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        groups = super()._hand_over(indices, asked)
        for index, task in list(self._running.items()):
            if self._gate._flights[index].admitted_at < self._gate.version:
                self._tasks.use(index)
                self._tasks._used.discard(index)
                task.cancel()
                self._gate.remove(index)
        return groups


@broken("tasks", "loop.staleness.drop", incident="tinker-cookbook#822", row="trained-as-submitted")
class DroppedIsForgotten(TaskSource):
    """Does not issue a dropped prompt again: what is slow is never learned."""

    def issue_again(self, index: int) -> None:
        """Forget it."""


@broken("tasks", "loop.staleness.attempts")
class SecondTryForEver(TaskSource):
    """Calls every further attempt of a dropped prompt the second one, so that it draws the same tokens again."""

    def issue_again(self, index: int) -> None:
        super().issue_again(index)
        self._attempts[index] = 1


@broken("tasks", "loop.tasks.once_per_epoch")
class TwoOrders(TaskSource):
    """Shuffles the first epoch one way and all others another."""

    def _order_of(self, epoch: int) -> Sequence[int]:
        return super()._order_of(min(epoch, 1))


@broken("executor", "loop.straggler.delays_itself", incident="NeMo-RL#3238", row="one-straggler")
class WaitsForEverything(RolloutExecutor):
    """Hands a batch over only when nothing runs any more."""

    async def next_batch(self) -> list[EpisodeGroup]:
        while self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)
        return await super().next_batch()


@broken("tasks", "loop.tasks.once_per_epoch")
class SameOrderEveryEpoch(TaskSource):
    """Shuffles once and repeats that order."""

    def _order_of(self, epoch: int) -> Sequence[int]:
        return super()._order_of(0)


@broken("tasks", "loop.tasks.once_per_epoch")
class DrawsWithReplacement(TaskSource):
    """Draws rows at random, so that an epoch holds some twice and some never."""

    def _order_of(self, epoch: int) -> Sequence[int]:
        order = super()._order_of(epoch)
        return [order[place // 2] for place in range(len(order))]


@broken(
    "tasks", "loop.tasks.kill_anywhere", "loop.tasks.state_is_frontier", "loop.machine.staleness",
    incident="NeMo-RL#3480", row="exactly-once",
)  # fmt: skip
class SavesGenerationCursor(TaskSource):
    """Saves where generation stands: what was in flight is never trained on."""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "frontier": self._next, "used": []}


@broken(
    "tasks", "loop.tasks.kill_anywhere", "loop.machine.staleness", incident="OpenRLHF#1322", row="exactly-once"
)  # fmt: skip
class ForgetsWhatOvertook(TaskSource):
    """Saves the frontier alone: prompts trained on before an older one finished are trained on twice."""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "used": []}


@broken("tasks", "loop.tasks.kill_anywhere", "loop.tasks.state_is_frontier", incident="TRL#5863", row="exactly-once")
class RestartsTheEpoch(TaskSource):
    """Begins the epoch again after a resume."""

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({**state, "frontier": 0, "used": []})


@broken("tasks", "loop.tasks.other_data")
class AcceptsOtherData(TaskSource):
    """Resumes on any data set."""

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore({**state, **self._identity()})


@broken("tasks", "loop.tasks.state_is_frontier")
class StateIsAnObject(TaskSource):
    """Saves live objects, which only pickle could write."""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "order": self._order_of, "identity": object()}


@broken("executor", "loop.tasks.rejected_replaced", "loop.tasks.kill_anywhere")
class CountsRejectedAsTrained(RolloutExecutor):
    """Leaves a rejected group's place in the batch empty."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        return super()._hand_over(indices, asked)[: 1 if self._counts.rejected or self._gate.version else None]


@broken("executor", "loop.groups.whole", "loop.failures.group_stands_together")
class TrainsPartialGroups(RolloutExecutor):
    """Trains on the members that are there, with a baseline over fewer of them."""

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        return [
            attrs.evolve(g, episodes=g.episodes[:-1], staleness=g.staleness[:-1])
            for g in super()._hand_over(indices, asked)
        ]


@broken("sessions", "loop.groups.whole")
class MembersShareASeed(PoolSessions):
    """Derives the seed from the prompt alone: the members of a group are copies."""

    def open(
        self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams | None = None
    ) -> PoolSession:
        return super().open(task_id=task_id, name=name, seed_name=str(task_id), sampling=sampling)


@broken("executor", "loop.evaluate.beside")
class EvaluationTakesPrompts(RolloutExecutor):
    """Counts every evaluated row as a trained prompt."""

    async def evaluate(self, rows: Sequence[Mapping[str, Any]], sampling: SamplingParams) -> list[Episode]:
        for _ in rows:
            self._tasks.use(self._tasks.next().index)
        return await super().evaluate(rows, sampling)


@broken("tasks", "loop.tasks.once_per_epoch")
class ThirdOrderForEver(TaskSource):
    """Repeats the order of the third epoch from the fourth on."""

    def _order_of(self, epoch: int) -> Sequence[int]:
        return super()._order_of(min(epoch, 2))


@broken("tasks", "loop.tasks.epochs_written_out")
class NextEpochWaitsForABatch(TaskSource):
    """Begins an epoch with a batch of its own, as a loader does that fills up its last one with rows from before."""

    def task(self, index: int, attempt: int | None = None) -> Task:
        rows = len(self)
        epoch, place = divmod(index, rows + rows % 2)
        return attrs.evolve(super().task(epoch * rows + min(place, rows - 1), attempt), index=index)


@broken("tasks", "loop.tasks.resumed")
class EpochsFromTheResume(TaskSource):
    """Orders the epochs after a resume as if the run had begun with the one it was in."""

    first = 0

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.first = self._frontier // len(self)

    def _order_of(self, epoch: int) -> Sequence[int]:
        return super()._order_of(epoch - self.first)


@broken("tasks", "loop.tasks.far_ahead")
class RemembersSixtyFour(TaskSource):
    """Saves which prompts are done for a window of sixty-four behind the first that is not."""

    def state(self) -> dict[str, Any]:
        state = super().state()
        return {**state, "used": [index for index in state["used"] if index < state["frontier"] + 64]}
