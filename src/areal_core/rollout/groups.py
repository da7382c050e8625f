"""A group: one prompt, several episodes, all of them or none.

Knows: that members stand or fall together.
Does not know: how one episode is made (`episodes`) or when a group may start (`staleness`).
"""

from __future__ import annotations

import asyncio

from attrs import evolve, frozen

from areal_core.contract.data import Episode
from areal_core.plugins.episodes import KeptGroup
from areal_core.rollout.episodes import EpisodeOrder, EpisodeRunner, RowRejected
from areal_core.rollout.tasks import Task


@frozen(kw_only=True)
class EpisodeGroup:
    """A finished group, ready to be trained on. Episodes are in member order.

    `oldest_versions` has one entry per episode, None if it generated nothing. `staleness` is set at
    hand-over, one entry per episode: the version trained at minus its oldest version.
    """

    task: Task
    episodes: tuple[Episode, ...]
    num_generated: int
    oldest_versions: tuple[int | None, ...]
    staleness: tuple[int, ...] = ()
    accepted: bool = True
    """False: `rollout.accept` left it out, and it keeps its place in a dynamic batch; it is not trained on."""

    @property
    def oldest_version(self) -> int | None:
        """Return the oldest version among all generated tokens, None if none was generated."""
        return min((version for version in self.oldest_versions if version is not None), default=None)


async def run_group(runner: EpisodeRunner, task: Task, group_size: int) -> EpisodeGroup | None:
    """Run every member of a group at once; None if the workflow rejected one of them.

    A member that fails or is rejected has its siblings cancelled, and all are awaited.

    Raises:
        EpisodeFailed, NoReplica: of the member that failed first.
    """
    orders = [
        EpisodeOrder(
            task_id=task.task_id,
            index=task.index,
            attempt=task.attempt,
            member=member,
            row=task.row,
            seed_name=f"{task.task_id}#{member}.{task.attempt}",
        )
        for member in range(group_size)
    ]
    try:
        async with runner.deadline(task.task_id) as deadline, asyncio.TaskGroup() as scope:
            members = [
                scope.create_task(runner.run(order, deadline, needed=True), name=order.seed_name) for order in orders
            ]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
        if isinstance(first, RowRejected):
            return None
        raise first from first.__cause__
    episodes = tuple(episode for member in members if (episode := member.result()[0]) is not None)
    return EpisodeGroup(
        task=task,
        episodes=episodes,
        num_generated=sum(member.result()[1] for member in members),
        oldest_versions=tuple(map(oldest_version, episodes)),
    )


def kept_group(kept: KeptGroup, task: Task) -> EpisodeGroup:
    """Return a group that finished before a resume."""
    return EpisodeGroup(
        task=task,
        episodes=kept.episodes,
        num_generated=sum(int(each.loss_mask.sum()) for episode in kept.episodes for each in episode.trajectories),
        oldest_versions=tuple(oldest_version(episode) for episode in kept.episodes),
    )


def oldest_version(episode: Episode) -> int | None:
    """Return the oldest version among an episode's generated tokens, None if it generated nothing."""
    oldest = never = 2**31 - 1  # above every version
    for each in episode.trajectories:
        oldest = int(each.versions.numpy(force=True).min(where=each.loss_mask.numpy(force=True), initial=oldest))
    return None if oldest == never else oldest


def episode_reward(episode: Episode) -> float:
    """Return the mean reward of an episode's trajectories, for metrics."""
    return sum(trajectory.reward for trajectory in episode.trajectories) / len(episode.trajectories)


def stamped(group: EpisodeGroup, version: int) -> EpisodeGroup:
    """Return the group as handed over at `version`."""
    return evolve(group, staleness=tuple(0 if old is None else version - old for old in group.oldest_versions))
