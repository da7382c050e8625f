"""What a group says of itself when it comes out of a store, made before this run began."""

from __future__ import annotations

import itertools

import pytest
import torch
from attrs import evolve

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, TaskId
from areal_core.plugins.episodes import KeptGroup
from areal_core.rollout.groups import kept_group, oldest_version
from areal_core.rollout.tasks import Task


def _episode(*versions: int) -> Episode:
    return Episode(trajectories=(_trajectory(*versions),), task_id=TaskId("train/0/0"), group_id=GroupId("train/0/0"))


def _trajectory(*versions: int) -> Trajectory:
    generated = torch.tensor([False, *[True] * len(versions)])
    return Trajectory(
        input_ids=torch.arange(len(generated)),
        loss_mask=generated,
        logprobs=torch.zeros(len(generated)),
        versions=torch.tensor([-1, *versions], dtype=torch.int32),
        reward=1.0,
        stop_reason=StopReason.STOP,
    )


def test_a_kept_group_is_as_old_as_its_oldest_token() -> None:
    """Not as its newest: the staleness bound would let through what is too old. Tokens are counted too."""
    task = Task(index=0, task_id=TaskId("train/0/0"), row={})
    kept = KeptGroup(task_index=0, attempt=0, episodes=(_episode(3, 4, 7), _episode(5, 6), _episode()))
    group = kept_group(kept, task)

    assert group.oldest_versions == (3, 5, None)
    assert (group.oldest_version, group.num_generated) == (3, 5)


@pytest.mark.parametrize("order", [*itertools.permutations([(3, 4), (5, 6), ()])])
def test_an_episode_is_as_old_as_the_oldest_of_its_trajectories(order: tuple[tuple[int, ...], ...]) -> None:
    """Whichever it made first: of a judge, of self-play, of an agent that began anew."""
    episode = evolve(_episode(), trajectories=tuple(_trajectory(*versions) for versions in order))

    assert oldest_version(episode) == 3
