"""The executor where something fails: a member, a group, a row, a workflow, a replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from attrs import evolve
from tests.benches.rollouts import SMALL, RolloutBench, ScriptedWorkflow, fails_on, indices

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Trajectory
from areal_core.contract.errors import (
    DatasetError,
    EpisodeFailed,
    GenerationFailed,
    NoReplica,
    RewardFailed,
    RolloutError,
)
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.workflow import Session
from areal_core.rollout.groups import EpisodeGroup


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def tokens(groups: list[EpisodeGroup]) -> list[list[int]]:
    return [e.trajectories[0].input_ids.tolist() for group in groups for e in group.episodes]


def slow_rows(slow: Mapping[int, int]) -> Callable[[GenerationRequest], int]:
    """Return a length that is 2, but longer for the named prompts (row number modulo 20)."""
    return lambda request: slow.get(request.input_ids[0] - 3, 2)


@pytest.mark.parametrize("error", [RewardFailed("no number", why="it gave NaN"), KeyError("answer")])
def test_one_failing_member_fails_its_group_visibly(error: Exception) -> None:
    """The error names task and member and keeps the cause; siblings are cancelled; no group is ever smaller."""

    async def test() -> None:
        strict = evolve(SMALL, max_failed_share=0.0)
        bench = RolloutBench(strict, judge=fails_on(1, error), length=slow_rows({1: 30}))
        with pytest.raises(EpisodeFailed, match="episode train/0/1, member 0, failed") as caught:
            for _ in range(5):
                assert all(len(group.episodes) == 2 for group in await bench.step())
        await bench.close()

        assert caught.value.__cause__ is error
        assert type(error).__name__ in caught.value.why
        assert bench.executor.stats().failures == (caught.value,)
        assert [event["task_id"] for event in bench.kinds("group_failed")] == ["train/0/1"]
        assert (await bench.engines[0].status()).num_running == 0

    run(test)


def test_failed_groups_within_the_allowance_are_counted_and_replaced() -> None:
    """One of the last 20 groups may fail: the run goes on, whole batches only; the second failure ends it."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=0, max_failed_share=0.05, retries=0)
        bench = RolloutBench(config, judge=lambda row, _: 1 / (row["number"] % 4))
        assert indices(await bench.step()) == [1, 2]
        assert bench.executor.stats().failed == 1

        with pytest.raises(EpisodeFailed, match="train/0/4"):
            await bench.step()
        await bench.close()

    run(test)


def test_the_share_of_failed_groups_is_of_the_last_ones_and_ends_the_run_with_the_count() -> None:
    """One in four fails for ever under a share of 0.3; a bug that comes later ends the run, and the error counts."""

    async def test() -> None:
        broken = 10**9

        def judge(row: Mapping[str, Any], _: Generation) -> float:
            if row["number"] % 4 == 0 or row["number"] >= broken:
                raise ValueError("bug")
            return 1.0

        config = RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=0, max_failed_share=0.3)
        bench = RolloutBench(config, num_rows=500, judge=judge)
        for _ in range(60):
            await bench.step()
        assert bench.executor.stats().failed >= 15
        broken = 0
        with pytest.raises(
            EpisodeFailed, match=r"4 of the last 10 groups failed, rollout.max_failed_share=0.3"
        ) as told:
            await bench.step()
        await bench.close()

        assert "ValueError: bug" in told.value.why

    run(test)


def test_retryable_errors_are_retried_and_others_are_not() -> None:
    """The error's class decides; a retried episode has the seeds, so the tokens, of an untroubled one."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=2, group_size=1, max_staleness=0, retries=2)
        calm = await RolloutBench(config).step()
        bench = RolloutBench(config)
        bench.workers[0].fail(GenerationFailed("hiccup"), times=2)
        groups = await bench.step()
        assert tokens(groups) == tokens(calm)
        assert len(bench.kinds("episode_retried")) == 2

        bench.workers[0].fail(GenerationFailed("down"), times=20)
        with pytest.raises(NoReplica, match="GenerationFailed: down"):
            await bench.step()
        await bench.close()

    run(test)


def test_a_non_retryable_error_is_tried_once() -> None:
    """A bug in a workflow is not run three times."""

    async def test() -> None:
        calls: list[int] = []

        def judge(row: Mapping[str, Any], _: Generation) -> float:
            calls.append(row["number"])
            raise ValueError("bug")

        config = RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=0, retries=5, max_failed_share=0.0)
        bench = RolloutBench(config, judge=judge)
        with pytest.raises(EpisodeFailed, match="train/0/0"):
            await bench.step()
        await bench.close()

        assert calls == [0]

    run(test)


def test_the_death_of_the_only_replica_ends_the_run_by_name() -> None:
    """NoReplica comes out of next_batch with worker, rank and log, whatever the allowance for failed groups."""

    async def test() -> None:
        bench = RolloutBench(RolloutConfig(prompts_per_step=2, group_size=2, max_failed_share=0.9))
        pending = asyncio.ensure_future(bench.executor.next_batch())
        await bench.clock.advance(0.5)
        bench.workers[0].die(("Killed by signal 9",))

        with pytest.raises(NoReplica, match="rank 0") as caught:
            await bench.drive(pending)
        assert "Killed by signal 9" in str(caught.value)
        assert bench.executor.stats().failed == 0
        await bench.close()

    run(test)


def test_the_death_of_one_of_two_replicas_costs_nothing() -> None:
    """Batches come out as if nothing had happened, with the same tokens."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=4, group_size=2, max_staleness=0)
        calm, hit = RolloutBench(config), RolloutBench(config, num_replicas=2)
        expected = await calm.step()
        pending = asyncio.ensure_future(hit.executor.next_batch())
        await hit.clock.advance(0.5)
        hit.workers[1].die()
        groups = await hit.drive(pending)

        assert hit.workers[1].calls.count("generate") > 0
        assert sum(worker.calls.count("generate") for worker in hit.workers) > 8, "some were asked again"
        assert tokens(groups) == tokens(expected)
        await calm.close()
        await hit.close()

    run(test)


def test_a_batch_that_cannot_be_completed_is_an_error_not_a_hang() -> None:
    """On hold with too few groups in flight, next_batch says what is missing."""

    async def test() -> None:
        bench = RolloutBench(SMALL)
        bench.executor.hold()

        with pytest.raises(RolloutError, match="1 of 2 groups are finished and none is running"):
            await bench.drive(bench.executor.next_batch())
        await bench.close()

    run(test)


def test_a_workflow_that_hangs_fails_within_its_time() -> None:
    """An episode has a deadline even where the engine has none."""

    class Waiting:
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> None:
            await asyncio.Event().wait()

    async def test() -> None:
        bench = RolloutBench(evolve(SMALL, episode_timeout_s=0.01), workflow=Waiting())
        with pytest.raises(EpisodeFailed, match=r"train/0/\d were not done after 0\.01 s"):
            await bench.executor.next_batch()
        await bench.close()

    run(test)


@pytest.mark.parametrize("leaves", [SystemExit(0), GeneratorExit()])
def test_a_workflow_that_leaves_python_fails_its_episode_alone(leaves: BaseException) -> None:
    """`sys.exit()` in somebody's tool ends an episode with an error that names it, and no run."""

    async def test() -> None:
        bench = RolloutBench(evolve(SMALL, max_failed_share=0.5), judge=fails_on(0, leaves))
        groups = [group for _ in range(3) for group in await bench.step()]
        await bench.close()

        assert len(groups) == 6 and 0 not in indices(groups)
        (failed,) = bench.executor.stats().failures
        assert "train/0/0" in failed.what and type(leaves).__name__ in failed.why

    run(test)


def test_a_row_that_leaves_python_when_it_is_read_is_an_error_of_the_data_set() -> None:
    """It comes out of `next_batch`, by name; the state of the trainers can be saved."""

    class Rows(list[Mapping[str, Any]]):
        def __getitem__(self, number: Any) -> Any:
            raise SystemExit(3)

    async def test() -> None:
        bench = RolloutBench(SMALL, rows=Rows([{"input_ids": [5]}] * 8))
        with pytest.raises(DatasetError, match="SystemExit: 3"):
            await bench.executor.next_batch()
        await bench.close()

    run(test)


def test_what_a_workflow_returns_is_checked() -> None:
    """A wrong type, a foreign group, a reward that is not finite: each is a failure, not a training sample."""

    class Returning:
        def __init__(self, change: Callable[[Trajectory, Session], object]) -> None:
            self.change = change

        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
            trajectory = await ScriptedWorkflow().arun_episode(engine, data)
            assert trajectory is not None
            return self.change(trajectory, engine)

    async def failure(change: Callable[[Trajectory, Session], object]) -> str:
        bench = RolloutBench(SMALL, workflow=Returning(change))
        with pytest.raises(EpisodeFailed) as caught:
            await bench.step()
        await bench.close()
        return caught.value.why

    async def test() -> None:
        from areal_core.contract.data import Episode

        def second_nan(first: Trajectory, engine: Session) -> Episode:
            trajectories = (first, evolve(first, reward=float("nan")))
            return Episode(trajectories=trajectories, task_id=engine.task_id, group_id=engine.group_id)

        assert "returned dict" in await failure(lambda t, _: {"input_ids": t.input_ids})
        assert "reward of nan" in await failure(lambda t, _: evolve(t, reward=float("nan")))
        assert "reward of nan" in await failure(second_nan)
        assert "group 'mine'" in await failure(lambda t, _: Episode(trajectories=(t,), task_id="a", group_id="mine"))

    run(test)


def test_a_prompt_whose_group_failed_comes_again_after_a_resume() -> None:
    """A failure may be the machine's: before a resume it is not asked again, after it at once, drawn anew."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=2, group_size=1, max_staleness=0, max_failed_share=0.5, retries=0)
        first = RolloutBench(config, judge=fails_on(1, RewardFailed("the judge was away")), num_rows=9)
        before = indices(await first.step()) + indices(await first.step())
        state = json.loads(json.dumps(first.executor.state()))
        await first.close()
        second = RolloutBench(config, num_rows=9, state=state)
        groups = await second.step()
        await second.close()

        assert before == [0, 2, 3, 4]
        assert [(group.task.index, group.task.attempt) for group in groups] == [(1, 1), (5, 0)]

    run(test)
