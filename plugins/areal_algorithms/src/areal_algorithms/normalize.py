"""Normalisation of rewards and advantages by explicit group ids.

Knows: which values share a statistic (the caller says so, by id) and how they are centred and scaled.
Does not know: what the values mean, how many members a group should have, or where the rows lie.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from areal_core.algorithms.config import NormConfig, NormLevel


def normalize(x: Tensor, config: NormConfig, *, groups: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return (x - mean) / (std + eps), each statistic over the batch, the group, or not at all.

    Called by the controller, on rewards [N] and on advantages [T]; the batch is the whole batch, so
    no reduction over ranks is needed. Statistics are float64, and only of values inside the mask.

    - `leave_one_out` subtracts the mean of the others; a value without others gets 0.
    - The std is that of x over its own level, about its own plain mean, whatever was subtracted above.
    - Where all values of a level agree (a single one does), nothing is left after centring over that
      level: exactly 0. And there is no scale: the divisor is 1, never eps.
    - std level `none` divides by exactly 1.

    Args:
        x: values of any float dtype [M].
        groups: int64 [M], the group of each value; read at level `group` only.
        mask: bool [M]; False entries are outside every statistic and come back as 0.

    Returns:
        float32 [M], a new tensor.
    """
    inside = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    values, ids = x.to(torch.float64)[inside], groups[inside]
    members = {level: _members(level, ids) for level in {config.mean, config.std} - {NormLevel.NONE}}
    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    result[inside] = (_centre(values, members, config) / _divisor(values, members, config)).to(torch.float32)
    return result


def places(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of each id among the distinct ids in order, int64 [M], and how often each occurs, int64 [G].

    What `torch.unique` says, which sorts all of them; here only one of each run is: tokens of a trajectory, and
    mostly trajectories of a group, lie side by side.
    """
    ids, run, length = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
    distinct, place = torch.unique(ids, return_inverse=True)
    return place[run], torch.zeros_like(distinct).index_add(0, place, length)


Members = tuple[Tensor, Tensor]
"""The statistic each value belongs to, int64 [M], and how many values each has, float64 [G]."""


def _centre(values: Tensor, members: Mapping[NormLevel, Members], config: NormConfig) -> Tensor:
    if config.mean is NormLevel.NONE:
        return values
    index, count = members[config.mean]
    total = _sum(values, index, count)
    others = (total[index] - values) / (count[index] - 1).clamp_min(1)
    mean = others if config.leave_one_out else (total / count)[index]
    # Rounding in the mean must not turn a group without information into one with a tiny gradient.
    return torch.where(_agree(values, index, count), 0.0, values - mean)


def _divisor(values: Tensor, members: Mapping[NormLevel, Members], config: NormConfig) -> Tensor:
    if config.std is NormLevel.NONE:
        return torch.ones_like(values)
    index, count = members[config.std]
    mean = _sum(values, index, count) / count
    squares = _sum((values - mean[index]).square(), index, count)
    std = (squares / (count - int(config.unbiased)).clamp_min(1)).sqrt()
    return torch.where(_agree(values, index, count), 1.0, std[index] + config.eps)


def _members(level: NormLevel, groups: Tensor) -> Members:
    if level is NormLevel.BATCH:
        index = torch.zeros_like(groups)
        return index, torch.full((1,), float(len(groups)), dtype=torch.float64, device=groups.device)
    index, count = places(groups)
    return index, count.to(torch.float64)


def _sum(values: Tensor, index: Tensor, count: Tensor) -> Tensor:
    return torch.zeros_like(count).index_add(0, index, values)


def _agree(values: Tensor, index: Tensor, count: Tensor) -> Tensor:
    """Tell for each value whether all of its statistic's values are equal, bit for bit; bool [M]."""
    high = torch.full_like(count, -torch.inf).scatter_reduce(0, index, values, "amax")
    low = torch.full_like(count, torch.inf).scatter_reduce(0, index, values, "amin")
    return (high == low)[index]
