"""Which finished groups are worth training on: dynamic sampling.

Knows: the rewards of a group's episodes.
Does not know: what takes the place of a group that is left out (`areal_core.rollout.executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from areal_core.contract.data import Episode


def mixed(episodes: Sequence[Episode]) -> bool:
    """Take a group whose rewards differ: of one whose answers are all equally good every advantage is 0 (DAPO)."""
    return len({trajectory.reward for episode in episodes for trajectory in episode.trajectories}) > 1


def make_mixed() -> Callable[[Sequence[Episode]], bool]:
    """Return what `rollout.accept: mixed` names."""
    return mixed
