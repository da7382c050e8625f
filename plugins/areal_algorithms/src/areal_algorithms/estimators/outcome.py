"""Estimators without a critic: a trajectory's whole reward against those of others.

Knows: groups, means and standard deviations; `group_mean`, `leave_one_out`, `reinforce++`, `reinforce++_baseline`.
Does not know: values, or what the reward is made of.
"""

from __future__ import annotations

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_algorithms.estimators.gae import discounted_suffix_sum
from areal_algorithms.normalize import normalize
from areal_algorithms.reduction import generated_lengths
from areal_core.algorithms.config import NormConfig, NormLevel
from areal_core.contract.batch import Batch

_WHITE = NormConfig(mean=NormLevel.BATCH, std=NormLevel.BATCH)


@frozen(kw_only=True)
class GroupMeanConfig:
    """Options of estimator `group_mean`."""

    std: NormLevel = NormLevel.GROUP
    """`group` is GRPO, `batch` Lite PPO, `none` Dr. GRPO."""
    unbiased: bool = True
    """Divide the variance by n - 1."""
    eps: float = field(default=1e-4, validator=validators.ge(0.0))
    """Added to the standard deviation."""


class GroupMean:
    """(R - mean of the group) / std: GRPO, arXiv 2402.03300."""

    def __init__(self, config: GroupMeanConfig) -> None:
        self._norm = NormConfig(mean=NormLevel.GROUP, std=config.std, unbiased=config.unbiased, eps=config.eps)

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return one advantage per trajectory, for each of its tokens [T]."""
        return _normalized_outcomes(batch, rewards, self._norm)


class LeaveOneOut:
    """R - mean of the others of the group: RLOO, arXiv 2402.14740."""

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return one advantage per trajectory, for each of its tokens [T]."""
        return _normalized_outcomes(batch, rewards, NormConfig(mean=NormLevel.GROUP, leave_one_out=True))


@frozen(kw_only=True)
class ReinforcePlusPlusConfig:
    """Options of estimator `reinforce++`, filled in from `algorithm.advantages.gamma`."""

    gamma: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """Discount per token."""


class ReinforcePlusPlus:
    """The discounted rewards from a token on, normalised over all tokens of the batch (arXiv 2501.03262)."""

    def __init__(self, config: ReinforcePlusPlusConfig) -> None:
        self._gamma = config.gamma

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return an advantage per token [T]: with a penalty per token in the reward they differ."""
        mask = batch.tokens["loss_mask"]
        index = mask.nonzero().squeeze(1)
        returns = torch.zeros_like(rewards)
        returns[index] = discounted_suffix_sum(rewards[index], batch.sequence_ids[index], self._gamma)
        return _white(returns, batch)


class ReinforcePlusPlusBaseline:
    """R - mean of the group, normalised over all tokens of the batch (arXiv 2501.03262)."""

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return one advantage per trajectory, for each of its tokens [T]."""
        centred = _normalized_outcomes(batch, rewards, NormConfig(mean=NormLevel.GROUP))
        return _white(centred, batch)


def _normalized_outcomes(batch: Batch, rewards: Tensor, norm: NormConfig) -> Tensor:
    outcomes = torch.zeros(batch.num_sequences, dtype=rewards.dtype, device=rewards.device)
    outcomes = outcomes.index_add(0, batch.sequence_ids, rewards)
    normed = normalize(outcomes, norm, groups=batch.sequences["group"], mask=generated_lengths(batch) > 0)
    return normed.to(rewards.dtype)[batch.sequence_ids]


def _white(x: Tensor, batch: Batch) -> Tensor:
    groups = batch.sequences["group"][batch.sequence_ids]
    return normalize(x, _WHITE, groups=groups, mask=batch.tokens["loss_mask"])
