"""The executor on scripted replicas and a step clock: batches, rejections, cancellation, resume, counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.rollouts import SMALL, RolloutBench, ScriptedWorkflow, greedy, indices

from areal_core.config.schema import RolloutConfig, StalenessPolicy
from areal_core.contract.data import Trajectory
from areal_core.contract.errors import (
    RolloutError,
    StalenessViolation,
)
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.contract.workflow import Session
from areal_core.rollout.groups import EpisodeGroup


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def tokens(groups: list[EpisodeGroup]) -> list[list[int]]:
    return [e.trajectories[0].input_ids.tolist() for group in groups for e in group.episodes]


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


@pytest.mark.parametrize("member", range(3))
def test_any_member_rejects_its_group(member: int) -> None:
    """Whichever it is: a group is trained whole or not at all."""

    async def test() -> None:
        seen: dict[int, int] = {}

        def judge(row: Mapping[str, Any], _: Generation) -> float | None:
            seen[row["number"]] = seen.get(row["number"], -1) + 1
            return None if row["number"] == 1 and seen[1] == member else 1.0

        bench = RolloutBench(RolloutConfig(prompts_per_step=2, group_size=3, max_staleness=0), judge=judge)
        groups = await bench.step()
        await bench.close()

        assert indices(groups) == [0, 2]
        assert [len(group.episodes) for group in groups] == [3, 3]

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
