"""What the episodes of a step were like, in numbers.

Knows: groups of finished episodes, their rewards, lengths and metrics; and which numbers of a step make another one.
Does not know: what is wrong with a number (`rules`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from areal_core.contract.data import Episode

MAX_NAMES = 100
"""Metrics of episodes that are taken by name; a name made of data would have no end."""

Groups = Sequence[Sequence[Episode]]


def measures(record: Mapping[str, Any], groups: Groups) -> dict[str, float]:
    """Return what is added to a step's record. Any: as in `metrics.jsonl`."""
    trajectories = [trajectory for group in groups for episode in group for trajectory in episode.trajectories]
    measured = [(trajectory.reward, float(trajectory.loss_mask.numpy(force=True).sum())) for trajectory in trajectories]
    return {
        **_spread("train/reward", [reward for reward, length in measured if length]),
        **_spread("train/response_length", [length for _, length in measured if length]),
        **_solved(groups),
        **_of_workflow([episode for group in groups for episode in group]),
        **_effective_sample_size(record),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{name}_std": _std(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def _std(values: Sequence[float]) -> float:
    """Return the population's; that of `statistics` is exact and takes thirty times as long."""
    mean = statistics.fmean(values)
    return math.sqrt(statistics.fmean([(value - mean) ** 2 for value in values]))


def _solved(groups: Groups) -> dict[str, float]:
    """Return shares of groups by their members' rewards."""
    rewards = [[t.reward for episode in group for t in episode.trajectories] for group in groups]
    rewards = [members for members in rewards if members]
    several = [members for members in rewards if len(members) > 1]
    shares: dict[str, float] = {}
    if rewards:
        shares["train/groups_all_solved"] = sum(min(members) >= 1 for members in rewards) / len(rewards)
        shares["train/groups_none_solved"] = sum(max(members) <= 0 for members in rewards) / len(rewards)
    if several:
        shares["train/groups_without_signal"] = sum(min(m) == max(m) for m in several) / len(several)
    return shares


def _of_workflow(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return mean and spread of each metric that episodes brought with them, parts of rewards among them."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            if math.isfinite(value) and (name in found or len(found) < MAX_NAMES):
                found.setdefault(name, []).append(float(value))
    means = {f"episode/{name}": statistics.fmean(values) for name, values in found.items()}
    return means | {f"episode/{name}_std": _std(values) for name, values in found.items()}


def _effective_sample_size(record: Mapping[str, Any]) -> dict[str, float]:
    ratio, square = record.get("train/policy_ratio"), record.get("train/policy_ratio_square")
    if not isinstance(ratio, float) or not isinstance(square, float) or not square > 0.0:
        return {}
    return {"train/effective_sample_size": ratio**2 / square}
