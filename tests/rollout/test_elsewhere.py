"""Rollout processes: as many as one likes make the same episodes, and one that dies costs none."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches.elsewhere import Elsewhere
from tests.benches.rollouts import RolloutBench, RolloutParts, ScriptedWorkflow, greedy

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import DatasetError, EpisodeFailed, WorkerDied
from areal_core.contract.ids import GroupId
from areal_core.contract.trajectory import from_generation
from areal_core.contract.workflow import Session

Made = list[tuple[int, list[list[int]], list[float]]]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


def _config(**fields: Any) -> RolloutConfig:  # Any: of a RolloutConfig
    given = {"prompts_per_step": 2, "group_size": 3, "max_staleness": 1, "retries": 0, "max_failed_share": 0.0}
    return RolloutConfig(**{**given, **fields})


def _bench(elsewhere: Elsewhere | None, config: RolloutConfig, **options: Any) -> RolloutBench:  # Any: of a bench
    parts = RolloutParts() if elsewhere is None else RolloutParts(executor=elsewhere.executor)
    return RolloutBench(config, parts=parts, **options)


async def _trained(elsewhere: Elsewhere | None, steps: int, **options: Any) -> tuple[Made, int]:  # Any: of a bench
    """Return what so many steps trained on, and how many tokens were generated for it."""
    side = _bench(elsewhere, options.pop("config", _config()), **options)
    try:
        groups = [group for _ in range(steps - 1) for group in await side.step()]
        await side.clock.settle()
        side.executor.hold()
        groups += await side.step()
        made = [
            (
                group.task.index,
                [[*map(int, each.input_ids)] for episode in group.episodes for each in episode.trajectories],
                [each.reward for episode in group.episodes for each in episode.trajectories],
            )
            for group in groups
        ]
        return made, side.executor.stats().tokens_generated
    finally:
        await side.close()


@given(count=st.integers(1, 4), prompts=st.integers(1, 3), size=st.integers(1, 3), seed=st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_any_number_of_processes_makes_the_same_episodes(count: int, prompts: int, size: int, seed: int) -> None:
    """Seeds, order, rewards and the number of generated tokens do not depend on who makes an episode."""
    config = _config(prompts_per_step=prompts, group_size=size, max_staleness=0)

    here = asyncio.run(_trained(None, 3, config=config, seed=seed))
    there = asyncio.run(_trained(Elsewhere(count), 3, config=config, seed=seed))

    assert there == here


@in_loop
async def test_members_of_a_group_are_made_in_one_process() -> None:
    """So that a reward that is asked about several answers at once sees them together."""
    seen: dict[str, set[int]] = {}
    elsewhere = Elsewhere(3)

    class Noting(ScriptedWorkflow):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
            source: Any = engine._source  # type: ignore[attr-defined]  # whose fleet is its process's
            seen.setdefault(engine.task_id, set()).add(id(source.pool))
            return await super().arun_episode(engine, data)

    side = _bench(elsewhere, _config(prompts_per_step=6), workflow=Noting())
    await side.step()
    await side.close()

    assert {len(pools) for pools in seen.values()} == {1}
    assert len({pool for pools in seen.values() for pool in pools}) == 3


@pytest.mark.parametrize("after", [0, 1, 3, 7])
@in_loop
async def test_a_process_that_dies_costs_no_episode(after: int) -> None:
    """Whenever it dies, its episodes are made again by others, the same ones, and none is trained twice."""
    whole, _ = await _trained(None, 4)
    elsewhere = Elsewhere(2)
    side = _bench(elsewhere, _config())
    made = []
    for step in range(4):
        call = asyncio.ensure_future(side.executor.next_batch())
        if step == 1:
            await side.clock.advance(after)
            elsewhere.workers[0].die()
        groups = await side.drive(call)
        made += [group.task.index for group in groups]
        side.version += 1
        side._serve(side.version)
        side.executor.set_version(side.version)
    await side.close()

    assert made == [index for index, _, _ in whole]
    assert len(elsewhere.workers) == 3
    assert side.pool.in_flight == 0


@in_loop
async def test_a_run_without_any_process_ends_with_what_the_last_one_died_of() -> None:
    """Episodes do not wait for processes that will never come."""
    elsewhere = Elsewhere(2)
    elsewhere.replaces = False
    side = _bench(elsewhere, _config())
    call = asyncio.ensure_future(side.executor.next_batch())
    await side.clock.settle()

    for worker in elsewhere.workers:
        worker.die()

    with pytest.raises(WorkerDied, match=r"workflow\.[01]/0 ended"):
        await call
    await side.close()


@in_loop
async def test_tokens_of_every_try_are_counted() -> None:
    """A try that failed has cost its tokens too."""
    tries: dict[str, int] = {}

    class FailsOnce(ScriptedWorkflow):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
            made = await super().arun_episode(engine, data)
            tries[engine.task_id] = tries.get(engine.task_id, 0) + 1
            if tries[engine.task_id] == 1:
                raise WorkerDied("a server of the workflow's own went away")
            return made

    config = _config(group_size=1, retries=1, max_staleness=0)
    here = await _trained(None, 2, config=config, workflow=FailsOnce())
    tries.clear()
    there = await _trained(Elsewhere(2), 2, config=config, workflow=FailsOnce())

    assert there == here


@in_loop
async def test_an_evaluation_runs_in_the_processes() -> None:
    """Beside the rollouts, and with its own sampling."""
    elsewhere = Elsewhere(2)
    side = _bench(elsewhere, _config())
    rows = [{"input_ids": [5, number]} for number in range(5)]

    episodes = await side.drive(side.executor.evaluate(rows, greedy()))
    await side.close()

    assert [[*map(int, episode.trajectories[0].input_ids[:2])] for episode in episodes] == [[5, n] for n in range(5)]


@in_loop
async def test_rows_and_metrics_may_hold_more_than_plain_data() -> None:
    """Dates, paths, arrays and numpy's numbers go there and back."""
    row = {"input_ids": [3, 4], "day": datetime.date(2026, 1, 2), "file": Path("a/b"), "grid": numpy.eye(2)}
    seen = []

    class Metrics(ScriptedWorkflow):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
            seen.append(data)
            generation = await engine.generate(data["input_ids"])
            trajectory = from_generation(data["input_ids"], generation, numpy.float64(0.5))
            return Episode(
                trajectories=(trajectory,),
                task_id=engine.task_id,
                group_id=GroupId(engine.task_id),
                metrics={"length": numpy.float32(2)},  # type: ignore[dict-item]  # what workflows do
            )

    side = _bench(Elsewhere(1), _config(), rows=[row], workflow=Metrics())
    groups = await side.step()
    await side.close()

    assert seen[0]["day"] == row["day"]
    assert seen[0]["file"] == row["file"]
    assert (seen[0]["grid"] == row["grid"]).all()
    assert groups[0].episodes[0].metrics == {"length": 2.0}


@in_loop
async def test_a_row_that_does_not_travel_is_named() -> None:
    """Before anything is made of it, with its column and type."""
    side = _bench(Elsewhere(1), _config(), rows=[{"input_ids": [3], "helper": object()}])

    with pytest.raises(DatasetError, match="rollout process") as raised:
        await side.drive(side.executor.next_batch())
    await side.close()

    assert "'helper'" in raised.value.why
    assert "rollout.processes=0" in raised.value.fix


@in_loop
async def test_an_episode_that_does_not_travel_fails_alone() -> None:
    """What a workflow returns is checked in its process; the others go on."""

    class Odd(ScriptedWorkflow):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
            generation = await engine.generate(data["input_ids"])
            trajectory = from_generation(data["input_ids"], generation, 1.0)
            if data["number"] == 1:
                object.__setattr__(trajectory, "input_ids", trajectory.input_ids.to_sparse())
            return trajectory

    side = _bench(Elsewhere(1), _config(max_failed_share=0.9), workflow=Odd())
    groups = await side.step()
    await side.close()

    assert [group.task.index for group in groups] == [0, 2]
    (failed,) = side.kinds("group_failed") or side.kinds("episode_failed")
    assert "does not travel" in str(failed)


@in_loop
async def test_an_error_keeps_its_words() -> None:
    """What, why and fix of a failed episode arrive as they would here."""

    def judge(row: Mapping[str, Any], _generation: Any) -> float:
        raise ValueError(f"no reward for {row['number']}")

    told = []
    for elsewhere in (None, Elsewhere(2)):
        side = _bench(elsewhere, _config(), judge=judge)
        with pytest.raises(EpisodeFailed) as raised:
            await side.drive(side.executor.next_batch())
        await side.close()
        told.append(str(raised.value))

    assert told[0] == told[1]
