"""The executor on scripted replicas and a step clock: batches, failures, cancellation, resume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.rollouts import RolloutBench, ScriptedWorkflow, greedy

from areal_core.config.schema import RolloutConfig, StalenessPolicy
from areal_core.contract.data import Trajectory
from areal_core.contract.errors import (
    DatasetError,
    EpisodeFailed,
    GenerationFailed,
    NoReplica,
    RewardFailed,
    RolloutError,
    StalenessViolation,
)
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.contract.workflow import Session
from areal_core.rollout.groups import EpisodeGroup

SMALL = RolloutConfig(
    prompts_per_step=2, group_size=2, max_staleness=1, retries=0, sampling=SamplingParams(max_new_tokens=64)
)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def indices(groups: list[EpisodeGroup]) -> list[int]:
    return [group.task.index for group in groups]


def tokens(groups: list[EpisodeGroup]) -> list[list[int]]:
    return [e.trajectories[0].input_ids.tolist() for group in groups for e in group.episodes]


def fails_on(number: int, error: BaseException) -> Callable[[Mapping[str, Any], Generation], float]:
    """Return a judge that raises for one row."""

    def judge(row: Mapping[str, Any], generation: Generation) -> float:
        if row["number"] == number:
            raise error
        return 1.0

    return judge


def slow_rows(slow: Mapping[int, int]) -> Callable[[GenerationRequest], int]:
    """Return a length that is 2, but longer for the named prompts (row number modulo 20)."""
    return lambda request: slow.get(request.input_ids[0] - 3, 2)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=20, max_size=20),
    bound=st.integers(0, 3),
    prompts=st.integers(1, 4),
    concurrent=st.integers(0, 5),
)
def test_what_is_trained_is_what_was_submitted(lengths: list[int], bound: int, prompts: int, concurrent: int) -> None:
    """Under wait no length is favoured: tasks come once each, in time, and none is left out of its batch."""

    async def test() -> None:
        config = RolloutConfig(
            prompts_per_step=prompts,
            group_size=2,
            max_staleness=bound,
            max_concurrent=concurrent,
            sampling=SamplingParams(max_new_tokens=64),
        )
        bench = RolloutBench(config, num_rows=20, length=lambda request: lengths[request.input_ids[0] - 3])
        batches = [await bench.step() for _ in range(6)]
        await bench.close()

        taken = [group for groups in batches for group in groups]
        order = [group.task.index for group in taken]
        assert len(order) == len(set(order)) == 6 * prompts
        assert all(len(groups) == prompts and indices(groups) == sorted(indices(groups)) for groups in batches)
        for version, groups in enumerate(batches):
            ages = [age for group in groups for age in group.staleness]
            assert max(ages) <= bound
            assert ages == [version - episode.oldest_version for group in groups for episode in group.episodes]
        for group in taken:
            wanted = lengths[group.task.index % 20]
            assert [int(e.trajectories[0].loss_mask.sum()) for e in group.episodes] == [wanted, wanted]
        due = range((5 - bound + 1) * prompts if concurrent == 0 and bound <= 5 else 0)
        assert set(due) <= set(order), "every group whose deadline passed was trained"
        if bound == 0:
            assert order == list(range(6 * prompts))

    run(test)


def test_a_bound_of_zero_is_the_synchronous_trainer() -> None:
    """Batch k is exactly the k-th slice of the data, all of version k, and nothing else is generated."""

    async def test() -> None:
        bench = RolloutBench(RolloutConfig(prompts_per_step=3, group_size=2, max_staleness=0))
        for version in range(4):
            groups = await bench.drive(bench.executor.next_batch())
            assert indices(groups) == [3 * version, 3 * version + 1, 3 * version + 2]
            assert {age for group in groups for age in group.staleness} == {0}
            assert bench.executor.stats().running == 0
            bench.version += 1
            bench.engines[0].version = bench.version
            bench.executor.set_version(bench.version)
        await bench.close()

    run(test)


def test_the_same_seed_gives_the_same_tokens() -> None:
    """Seeds come from run seed, task, member and turn: members differ, runs do not."""

    async def made(seed: int) -> list[list[int]]:
        bench = RolloutBench(SMALL, seed=seed)
        groups = await bench.step()
        await bench.close()
        return tokens(groups)

    async def test() -> None:
        first = await made(1)
        assert first == await made(1)
        assert first != await made(2)
        assert len({tuple(ids) for ids in first}) == len(first)

    run(test)


def test_rollouts_go_on_while_a_batch_is_trained_on() -> None:
    """The gate lets generation run max_staleness batches ahead, and not a group more."""

    async def test() -> None:
        bench = RolloutBench(SMALL)
        await bench.drive(bench.executor.next_batch())
        await bench.clock.advance(1000.0)

        stats = bench.executor.stats()
        assert (stats.running, stats.buffered, stats.consumed) == (0, 2, 2)
        assert sum(len(engine.requests) for engine in bench.engines) == 8
        await bench.close()

    run(test)


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


def test_rejected_groups_are_replaced_and_never_trained_on() -> None:
    """None from one member rejects the whole group, on purpose: counted apart from failures."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=0)
        bench = RolloutBench(config, judge=lambda row, _: None if row["number"] % 2 else 1.0)
        batches = [indices(await bench.step()) for _ in range(2)]
        await bench.close()

        assert batches == [[0, 2], [4, 6]]
        assert (bench.executor.stats().rejected, bench.executor.stats().failed) == (3, 0)

    run(test)


def test_a_filter_over_whole_groups_rejects_them() -> None:
    """Dynamic sampling: groups whose rewards are all equal are made again from other prompts."""

    async def test() -> None:
        seen: dict[int, int] = {}

        def judge(row: Mapping[str, Any], _: Generation) -> float:
            seen[row["number"]] = seen.get(row["number"], 0) + 1
            return float(seen[row["number"]] % 2 if row["number"] != 1 else 1)

        config = RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=0)
        bench = RolloutBench(
            config, judge=judge, accept=lambda episodes: len({e.trajectories[0].reward for e in episodes}) > 1
        )
        assert indices(await bench.step()) == [0, 2]
        await bench.close()

    run(test)


def test_a_workflow_that_rejects_everything_is_an_error_not_an_endless_loop() -> None:
    """After an epoch without one group the executor stops and says so."""

    async def test() -> None:
        bench = RolloutBench(SMALL, judge=lambda *_: None, num_rows=8)
        with pytest.raises(RolloutError, match="rejected 20 groups in a row"):
            await bench.step()
        await bench.close()

    run(test)


def test_groups_rejected_now_and_then_are_not_groups_rejected_in_a_row() -> None:
    """However many there are over a run: one that is not rejected begins the count anew."""

    async def test() -> None:
        bench = RolloutBench(SMALL, judge=lambda row, _: None if row["number"] % 4 else 1.0, num_rows=8)
        for _ in range(8):
            await bench.step()
        assert bench.executor.stats().rejected > 20, "more than may be in a row"
        await bench.close()

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


def test_close_leaves_no_task_and_can_be_repeated() -> None:
    """Everything in flight is cancelled and awaited, evaluation too; who waits for a batch is told."""

    async def test() -> None:
        bench = RolloutBench(SMALL)
        waiting = asyncio.ensure_future(bench.executor.next_batch())
        evaluation = asyncio.ensure_future(bench.executor.evaluate([{"input_ids": [5]}] * 9, greedy()))
        await bench.clock.advance(0.5)
        await bench.close()
        await bench.close()

        with pytest.raises(RolloutError, match="closed"):
            await waiting
        with pytest.raises(RolloutError, match="cut short"):
            await evaluation
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (await bench.engines[0].status()).num_running == 0

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
        def __init__(self, change: Callable[[Trajectory], object]) -> None:
            self.change = change

        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
            trajectory = await ScriptedWorkflow().arun_episode(engine, data)
            assert trajectory is not None
            return self.change(trajectory)

    async def failure(change: Callable[[Trajectory], object]) -> str:
        bench = RolloutBench(SMALL, workflow=Returning(change))
        with pytest.raises(EpisodeFailed) as caught:
            await bench.step()
        await bench.close()
        return caught.value.why

    async def test() -> None:
        from areal_core.contract.data import Episode

        assert "returned dict" in await failure(lambda t: {"input_ids": t.input_ids})
        assert "reward of nan" in await failure(lambda t: evolve(t, reward=float("nan")))
        assert "group 'mine'" in await failure(lambda t: Episode(trajectories=(t,), task_id="a", group_id="mine"))

    run(test)


def test_a_task_the_workflow_left_behind_is_cancelled_with_its_episode() -> None:
    """The session belongs to the episode: requests of forgotten tasks do not outlive it."""

    class Careless:
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
            self.forgotten = asyncio.create_task(engine.generate([9, 9]))
            return await ScriptedWorkflow().arun_episode(engine, data)

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=0)
        workflow = Careless()
        bench = RolloutBench(config, workflow=workflow, length=lambda r: 50 if r.input_ids[0] == 9 else 2)
        await bench.drive(bench.executor.next_batch())
        await bench.clock.settle()

        assert workflow.forgotten.cancelled()
        assert (await bench.engines[0].status()).num_running == 0
        await bench.close()

    run(test)


def test_an_engine_that_serves_older_weights_than_the_run_is_found_out() -> None:
    """Versions are the engine's; one left behind is a StalenessViolation, not a silent off-policy batch."""

    async def test() -> None:
        bench = RolloutBench(RolloutConfig(prompts_per_step=1, group_size=1, max_staleness=0))
        await bench.step()
        bench.engines[0].version = 0

        with pytest.raises(StalenessViolation, match="is 1 versions old at version 1"):
            await bench.step()
        await bench.close()

    run(test)


def test_dropped_groups_are_issued_again_until_they_are_young_enough() -> None:
    """Policy drop: the slow prompt is dropped and counted, its task comes again, nothing too old is trained on."""

    async def test() -> None:
        config = RolloutConfig(
            prompts_per_step=1,
            group_size=1,
            max_staleness=1,
            staleness_policy=StalenessPolicy.DROP,
            sampling=SamplingParams(max_new_tokens=64),
        )
        bench = RolloutBench(config, length=slow_rows({0: 9}), num_rows=20)
        trained = [group for _ in range(14) for group in await bench.step()]
        await bench.close()

        dropped = bench.kinds("group_dropped")
        assert [event["attempt"] for event in dropped if event["task_id"] == "train/0/0"][:2] == [0, 1]
        assert bench.executor.stats().dropped == len(dropped)
        assert len({group.task.index for group in trained}) == 14
        assert max(age for group in trained for age in group.staleness) <= 1

    run(test)


def test_a_resumed_run_trains_every_prompt_exactly_once() -> None:
    """Groups in flight or in the buffer when the state was saved are made again; handed over ones are not."""

    async def test() -> None:
        config = RolloutConfig(prompts_per_step=3, group_size=1, max_staleness=2, sampling=SMALL.sampling)
        first = RolloutBench(config, num_rows=15, length=slow_rows({0: 30, 4: 30}), shuffle=True)
        before = [group.task.task_id for _ in range(2) for group in await first.step()]
        state = json.loads(json.dumps(first.executor.state()))
        await first.close()
        second = RolloutBench(config, num_rows=15, shuffle=True, state=state)
        groups = [group for _ in range(3) for group in await second.step()]
        await second.close()

        after = [group.task.task_id for group in groups]
        assert state["version"] == 2
        assert sorted(before + after) == sorted(f"train/0/{row}" for row in range(15))
        assert max(age for group in groups for age in group.staleness) <= 2

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


def test_evaluation_runs_beside_the_rollouts_and_outside_the_gate() -> None:
    """One episode per row, in order, with the given parameters; the gate's counts do not change."""

    async def test() -> None:
        bench = RolloutBench(SMALL)
        rows = [{"input_ids": [7, number], "number": number} for number in range(20)]
        episodes = await bench.drive(bench.executor.evaluate(rows, greedy()))
        again = await bench.drive(bench.executor.evaluate(rows, greedy()))

        assert [episode.task_id for episode in episodes] == [f"eval/{number}" for number in range(20)]
        assert [e.trajectories[0].input_ids[1] for e in episodes] == list(range(20))
        assert [e.trajectories[0].input_ids.tolist() for e in again] == [
            e.trajectories[0].input_ids.tolist() for e in episodes
        ]
        sent = [r.sampling for r in bench.engines[0].requests if str(r.request_id).startswith("eval")]
        assert {sampling.temperature for sampling in sent} == {0.0}
        stats = bench.executor.stats()
        assert (stats.evaluated, stats.consumed, stats.admitted) == (40, 0, 4)
        await bench.close()

    run(test)


def test_a_failing_evaluation_tells_and_leaves_nothing_behind() -> None:
    """An error in one row comes out as EpisodeFailed of that row; the rollouts go on."""

    async def test() -> None:
        bench = RolloutBench(SMALL, judge=fails_on(99, RewardFailed("no number")))
        rows = [{"input_ids": [7], "number": number} for number in (97, 98, 99)]
        with pytest.raises(EpisodeFailed, match="eval/2"):
            await bench.drive(bench.executor.evaluate(rows, greedy()))

        assert len(await bench.step()) == 2
        await bench.close()

    run(test)


def test_rows_that_an_evaluation_rejects_are_left_out_and_not_counted() -> None:
    async def test() -> None:
        bench = RolloutBench(SMALL, judge=lambda row, _: None if row["number"] % 2 else 1.0)
        rows = [{"input_ids": [7], "number": number} for number in range(6)]
        episodes = await bench.drive(bench.executor.evaluate(rows, greedy()))

        assert [episode.task_id for episode in episodes] == ["eval/0", "eval/2", "eval/4"]
        assert bench.executor.stats().evaluated == 3
        await bench.close()

    run(test)


def test_an_evaluation_tolerates_what_training_tolerates() -> None:
    """A failed row is told and left out; past `max_failed_share` of the rows the evaluation fails, by the last one."""
    rows = [{"input_ids": [7], "number": 90 + number} for number in range(10)]

    async def evaluated(share: float) -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        bench = RolloutBench(
            evolve(SMALL, max_failed_share=share),
            judge=fails_on(93, RewardFailed("no number")),
            on_event=lambda kind, **fields: told.append((kind, fields.get("task_id", ""))),
        )
        episodes = await bench.drive(bench.executor.evaluate(rows, greedy()))
        await bench.close()
        assert [episode.task_id for episode in episodes] == [f"eval/{n}" for n in range(10) if n != 3]
        return [event for event in told if event[0] == "evaluation_failed"]

    async def test() -> None:
        assert await evaluated(0.1) == [("evaluation_failed", "eval/3")]
        with pytest.raises(EpisodeFailed, match=r"1 of 10 rows of the evaluation failed(.|\n)*eval/3"):
            await evaluated(0.05)
        with pytest.raises(EpisodeFailed, match=r"^episode eval/3"):
            await evaluated(0.0)

    run(test)


def test_the_numbers_add_up() -> None:
    """Every admitted group is in exactly one place, and the histogram covers the last batch."""

    async def test() -> None:
        bench = RolloutBench(SMALL, judge=lambda row, _: None if row["number"] == 3 else 2.0)
        made: list[int] = []
        generate = bench.pool.generate

        async def counted(*request: Any, **options: Any) -> Generation:  # Any: as the pool's
            generation = await generate(*request, **options)
            made.append(len(generation.output_ids))
            return generation

        bench.pool.generate = counted  # type: ignore[method-assign]
        for _ in range(3):
            await bench.step()
        stats, answered = bench.executor.stats(), sum(made)
        await bench.close()

        assert stats.admitted == stats.running + stats.buffered + stats.consumed + stats.rejected
        assert (stats.consumed, stats.rejected, stats.episodes_consumed) == (6, 1, 12)
        assert stats.reward_sum == 24.0
        assert sum(stats.last_staleness.values()) == 4
        assert stats.max_staleness_seen <= 1
        assert stats.tokens_generated == answered

    run(test)
