"""What the executor tells the store of episodes, and how it goes on with what the store kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from attrs import Factory, define, evolve
from tests.benches.rollouts import RolloutBench, ScriptedWorkflow, greedy

from areal_core.config.schema import RolloutConfig, StalenessPolicy
from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import Session
from areal_core.plugins.episodes import EndedEpisode, Ending, Fate, KeptGroup

SMALL = RolloutConfig(
    prompts_per_step=2, group_size=2, max_staleness=1, retries=0, sampling=SamplingParams(max_new_tokens=64)
)


@define
class Remembered:
    """A store in memory: what it was told, in order."""

    episodes: list[EndedEpisode] = Factory(list)
    fates: list[tuple[int, int, Fate, int | None]] = Factory(list)

    def ended(self, episode: EndedEpisode) -> None:
        self.episodes.append(episode)

    def settled(self, task_index: int, attempt: int, fate: Fate, step: int | None = None) -> None:
        self.fates.append((task_index, attempt, fate, step))

    def learned(self, step: int, batch: Batch) -> Future[None]:
        written: Future[None] = Future()
        written.set_result(None)
        return written

    def kept(self, version: int, group_size: int, used: Callable[[int], bool]) -> list[KeptGroup]:
        settled = {(index, attempt) for index, attempt, fate, step in self.fates if (step or 0) <= version}
        groups: dict[tuple[int, int], list[EndedEpisode]] = {}
        for episode in self.episodes:
            key = (episode.task_index, episode.attempt)
            if key not in settled and not used(key[0]) and episode.version <= version:
                groups.setdefault(key, []).append(episode)
        whole = {
            key: sorted(found, key=lambda e: e.member) for key, found in groups.items() if len(found) == group_size
        }
        return [
            KeptGroup(task_index=index, attempt=attempt, episodes=tuple(map(_episode, found)))
            for (index, attempt), found in whole.items()
        ]

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def _episode(ended: EndedEpisode) -> Episode:
    task = ended.task_id
    return Episode(trajectories=tuple(ended.trajectories), task_id=TaskId(task), group_id=GroupId(task))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_every_episode_is_told_with_what_became_of_it() -> None:
    """Index, member, row, columns, times and the replica; trained groups name the step that trained them."""

    async def test() -> None:
        store = Remembered()
        bench = RolloutBench(SMALL, store=store)
        batches = [await bench.step() for _ in range(3)]
        (evaluated,) = await bench.drive(bench.executor.evaluate([{"input_ids": [5, 4], "number": 0}], greedy()))
        await bench.close()

        trained = {(group.task.index, step) for step, groups in enumerate(batches, start=1) for group in groups}
        assert {(index, step) for index, _, fate, step in store.fates if fate is Fate.TRAINED} == trained
        told = [e for e in store.episodes if (e.task_index, 1) in trained]
        assert Counter(e.task_index for e in told) == dict.fromkeys((index for index, step in trained if step == 1), 2)
        first = told[0]
        assert first.ending is Ending.FINISHED and first.row["number"] == first.task_index
        assert (first.replica, first.version, first.error) == ("infer/0", 0, "")
        assert first.seconds >= 0 and first.started > 1e9
        (evaluation,) = [e for e in store.episodes if e.task_index < 0]
        assert evaluation.trajectories is evaluated.trajectories

    run(test)


def test_an_episode_that_failed_or_was_rejected_is_told_with_its_output() -> None:
    """The error names the episode; its tokens are there; the group's fate is its own."""

    def judge(row: Mapping[str, Any], generation: Generation) -> float | None:
        if row["number"] == 0:
            raise ValueError("no answer")
        return None if row["number"] == 1 else 1.0

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(prompts_per_step=2, group_size=1, max_staleness=1, retries=0, max_failed_share=0.5)
        bench = RolloutBench(config, judge=judge, store=store)
        for _ in range(3):
            await bench.step()
        await bench.close()

        failed, rejected = (next(e for e in store.episodes if e.task_index == index) for index in (0, 1))
        assert (failed.ending, rejected.ending) == (Ending.FAILED, Ending.REJECTED)
        assert "train/0/0, member 0," in failed.error and "no answer" in failed.error
        assert len(failed.trajectories[0]) > 2 and len(rejected.trajectories[0]) > 2
        assert {(0, 0, Fate.FAILED, None), (1, 0, Fate.REJECTED, None)} <= set(store.fates)

    run(test)


def test_a_resume_goes_on_with_what_was_finished() -> None:
    """Kept groups are trained with their versions and not generated again; what ran is issued again, nothing twice."""

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=2, retries=0)
        bench = RolloutBench(config, store=store)
        first = [await bench.step() for _ in range(2)]
        state = bench.executor.state()
        while bench.executor.stats().buffered < 2:
            await bench.clock.advance(1.0)
        await bench.close()
        made = len(store.episodes)

        again = RolloutBench(config, store=store, state=state)
        (kept,) = again.kinds("episodes_kept")
        second = [await again.step() for _ in range(4)]
        await again.close()

        trained = [group.task.index for groups in (*first, *second) for group in groups]
        finished = Counter(e.task_index for e in store.episodes[:made])
        anew = {e.task_index for e in store.episodes[made:]}
        assert kept["groups"] == 2 or kept["groups"] == kept["of"]
        assert len(trained) == len(set(trained)) == 12
        assert not anew & {index for index in trained if finished[index] == 2}
        assert max(age for groups in second for group in groups for age in group.staleness) <= 2
        assert max(age for groups in second[:1] for group in groups for age in group.staleness) >= 1

    run(test)


def test_what_is_too_old_for_the_bound_is_issued_again() -> None:
    """A resume with a smaller bound drops what it forbids, tells, and generates it again."""

    async def test() -> None:
        store = Remembered()
        wide = RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=3, retries=0)
        bench = RolloutBench(wide, store=store)
        await bench.step()
        await bench.step()
        state = bench.executor.state()
        while bench.executor.stats().running:
            await bench.clock.advance(1.0)
        await bench.close()

        narrow = RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=0, retries=0)
        again = RolloutBench(narrow, store=store, state=state)
        (group,) = await again.step()
        await again.close()

        assert group.staleness == (0,)
        assert any(fate is Fate.DROPPED for _, _, fate, _ in store.fates)

    run(test)


def test_what_is_kept_has_room_by_its_age_not_by_its_place() -> None:
    """Old groups have the batches that are left for them; younger ones in front of them are issued again."""

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=2, retries=0)
        bench = RolloutBench(config, store=store)
        before = {group.task.index for _ in range(2) for group in await bench.step()}
        state = bench.executor.state()
        while bench.executor.stats().running:
            await bench.clock.advance(1.0)
        await bench.close()
        left = sorted((e for e in store.episodes if e.task_index not in before), key=lambda e: e.task_index)
        store.episodes = [_aged(e, version) for e, version in zip(left, (1, 1, 0), strict=True)]

        again = RolloutBench(config, store=store, state=state)
        batches = [await again.step() for _ in range(4)]
        await again.close()

        trained = [group.task.index for groups in batches for group in groups]
        assert trained[0] == left[-1].task_index and {e.task_index for e in left} < set(trained)
        assert len(before | set(trained)) == 6
        assert max(age for groups in batches for group in groups for age in group.staleness) <= 2

    run(test)


def _aged(ended: EndedEpisode, version: int) -> EndedEpisode:
    """Return the episode with all its tokens of one version."""
    made = [evolve(each, versions=each.versions.where(~each.loss_mask, version)) for each in ended.trajectories]
    return evolve(ended, trajectories=made)


def test_what_is_dropped_is_told_with_its_attempt() -> None:
    """Under the policy drop a prompt's attempts have fates of their own."""

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(
            prompts_per_step=1, group_size=1, max_staleness=0, staleness_policy=StalenessPolicy.DROP, max_concurrent=3
        )
        bench = RolloutBench(config, workflow=ScriptedWorkflow(), store=store)
        for _ in range(4):
            await bench.step()
        await bench.close()

        dropped = [(index, attempt) for index, attempt, fate, _ in store.fates if fate is Fate.DROPPED]
        assert len(dropped) == len(set(dropped)) > 0
        assert {e.attempt for e in store.episodes if e.task_index == dropped[0][0]} >= {0}

    run(test)


def test_a_member_that_the_deadline_of_its_group_ends_is_told_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row, output and why, beside the member that was done; a run that is closed calls nothing failed."""
    generated: list[int] = []

    class OnlyTheFirstEnds(ScriptedWorkflow):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
            trajectory = await super().arun_episode(engine, data)
            generated.append(data["number"])
            if len(generated) > 1:
                await asyncio.Event().wait()
            return trajectory

    async def test() -> None:
        store = Remembered()
        config = RolloutConfig(
            prompts_per_step=1, group_size=3, max_staleness=1, retries=0, max_failed_share=0.0, episode_timeout_s=1000.0
        )
        bench = RolloutBench(config, workflow=OnlyTheFirstEnds(), store=store)
        while generated.count(0) < 3:
            await bench.clock.advance(1.0)
        loop = asyncio.get_running_loop()
        passed = loop.time
        monkeypatch.setattr(loop, "time", lambda: passed() + 1001.0)
        with pytest.raises(EpisodeFailed, match="the episodes of train/0/0 were not done after 1000 s"):
            await bench.drive(bench.executor.next_batch())
        await bench.close()

        told = [e for e in store.episodes if e.task_index == 0]
        failed = [e for e in told if e.ending is Ending.FAILED]
        assert (len(told), len(failed)) == (3, 2)
        assert all(e.row["number"] == 0 and len(e.trajectories[0]) > 2 for e in failed)
        assert all(f"train/0/0, member {e.member}, failed" in e.error and "after 1000 s" in e.error for e in failed)
        assert (0, 0, Fate.FAILED, None) in store.fates

    async def closed() -> None:
        store = Remembered()
        bench = RolloutBench(evolve(SMALL, episode_timeout_s=1000.0), workflow=OnlyTheFirstEnds(), store=store)
        await bench.clock.advance(100.0)
        await bench.close()

        assert generated and not [e for e in store.episodes if e.ending is Ending.FAILED]

    run(test)
    generated.clear()
    monkeypatch.undo()
    run(closed)


def test_an_episode_whose_workflow_cancelled_itself_is_told() -> None:
    """It failed like any other: with its row, what it had generated, and why."""

    class Quits(ScriptedWorkflow):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
            trajectory = await super().arun_episode(engine, data)
            if data["number"] == 0:
                raise asyncio.CancelledError
            return trajectory

    async def test() -> None:
        store = Remembered()
        bench = RolloutBench(evolve(SMALL, max_failed_share=0.5), workflow=Quits(), store=store)
        for _ in range(3):
            await bench.step()
        await bench.close()

        failed = [e for e in store.episodes if e.ending is Ending.FAILED]
        assert failed and all(e.row["number"] == 0 and "it cancelled itself" in e.error for e in failed)
        assert all(len(e.trajectories[0]) > 2 for e in failed)

    run(test)
