"""Trajectories are made ready for training beside the event loop, and one that cannot be fails by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import BatchError, EpisodeFailed, NoReplica
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.trajectory import from_generation
from areal_core.contract.workflow import Session
from areal_core.rollout.episodes import EpisodeOrder, EpisodeRunner, Prepare
from areal_core.rollout.groups import run_group
from areal_core.rollout.tasks import Task

GENERATION = Generation(
    output_ids=(4,), logprobs=(-0.5,), version_spans=(VersionSpan(start=0, stop=1, version=3),), stop_reason="stop"
)


class _Workflow:
    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory:
        return from_generation([5], GENERATION, 1.0, images=[b"one"])


class _Session:
    num_generated = 1

    async def close(self) -> None: ...


class _Sessions:
    def open(self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams | None) -> Any:
        return _Session()


def runner(prepare: Prepare | None) -> EpisodeRunner:
    return EpisodeRunner(workflow=_Workflow(), sessions=_Sessions(), retries=2, timeout_s=60.0, prepare=prepare)


TASK = Task(index=0, task_id=TaskId("train/0/7"), row={})


class _Members:
    """The first fails; its siblings reject the row when they are cancelled."""

    def __init__(self) -> None:
        self.asked = 0

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> None:
        self.asked += 1
        if self.asked == 1:
            await asyncio.sleep(0)
            raise NoReplica("the fleet is gone")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return


def test_a_failure_beside_a_rejection_is_a_failure() -> None:
    """What happened first counts: a fleet that is gone ends the run, whatever members make of being cancelled."""
    failing = EpisodeRunner(workflow=_Members(), sessions=_Sessions(), retries=0, timeout_s=60.0, prepare=None)
    with pytest.raises(NoReplica, match="the fleet is gone"):
        asyncio.run(run_group(failing, TASK, 3))


def test_a_group_is_handed_over_prepared_by_other_threads() -> None:
    """Every trajectory once; the event loop goes on meanwhile."""
    threads: list[int] = []

    def prepare(trajectory: Trajectory) -> Trajectory:
        threads.append(threading.get_ident())
        return evolve(trajectory, images=(), reward=trajectory.reward + 1)

    group = asyncio.run(run_group(runner(prepare), TASK, 3))

    assert group is not None
    assert [t.reward for episode in group.episodes for t in episode.trajectories] == [2.0] * 3
    assert len(threads) == 3 and threading.get_ident() not in threads


def test_an_episode_that_cannot_be_prepared_fails_by_name_and_is_not_made_again() -> None:
    """The error of what prepares stands in the message; another try would give the same."""
    calls: list[int] = []

    def prepare(trajectory: Trajectory) -> Trajectory:
        calls.append(1)
        raise BatchError("image 0 of a trajectory cannot be read", why="it is torn", fix="give a whole file")

    with pytest.raises(EpisodeFailed, match=r"train/0/7, member 0(.|\n)*cannot be read(.|\n)*it is torn") as caught:
        asyncio.run(run_group(runner(prepare), TASK, 1))

    assert (caught.value.fix, len(calls)) == ("give a whole file", 1)


def test_evaluations_are_not_prepared() -> None:
    """Nobody trains on them."""

    def prepare(trajectory: Trajectory) -> Trajectory:
        raise AssertionError("an evaluation was prepared")

    order = EpisodeOrder(task_id=TaskId("eval/0"), member=0, row={}, seed_name="eval/0")

    async def evaluated() -> Episode | None:
        made = runner(prepare)
        async with made.deadline(order.task_id) as deadline:
            return (await made.run(order, deadline))[0]

    episode = asyncio.run(evaluated())
    assert episode is not None and episode.trajectories[0].images == (b"one",)


def test_without_anything_to_prepare_it_is_the_same_episode() -> None:
    """A model of text alone."""
    group = asyncio.run(run_group(runner(None), TASK, 1))

    assert group is not None and group.episodes[0].trajectories[0].images == (b"one",)
