"""From the task's reward of a trajectory to the number the advantages are made of.

Knows: overlong penalty, bias, scale, clip, truncation, normalisation, in that order.
Does not know: how a trajectory's reward spreads over its tokens (`advantages`, `gae`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_algorithms.normalize import normalize
from areal_algorithms.reduction import generated_lengths
from areal_core.algorithms.config import AdvantageConfig, OverlongConfig
from areal_core.contract.batch import STOP_CODES, Batch
from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError

_TRUNCATED = tuple(STOP_CODES.index(reason) for reason in (StopReason.LENGTH, StopReason.ABORTED))


def is_truncated(batch: Batch) -> Tensor:
    """Tell which trajectories were cut off before their end, bool [N]: stop reason `length` or `aborted`."""
    codes = torch.tensor(_TRUNCATED, device=batch.device)
    return torch.isin(batch.sequences["stop_reason"].to(torch.int64), codes)


def overlong_penalty(lengths: Tensor, config: OverlongConfig, max_new_tokens: int) -> Tensor:
    """Return the soft length penalty of DAPO (arXiv 2503.14476, eq. 13), float64 [N], in [-factor, 0].

    0 up to `max_new_tokens - tokens` generated tokens, then linear down to -factor at `max_new_tokens`.
    """
    tokens = config.over(max_new_tokens)
    if tokens == 0:
        return torch.zeros(lengths.shape, dtype=torch.float64, device=lengths.device)
    exceed = (lengths - (max_new_tokens - tokens)).to(torch.float64)
    return -(exceed / tokens).clamp(0.0, 1.0) * config.factor


def shape_rewards(batch: Batch, config: AdvantageConfig, *, max_new_tokens: int) -> Tensor:
    """Return each trajectory's final reward, float32 [N]; 0 and in no statistic if it generated nothing.

    Raises:
        BatchError: a reward is not finite.
    """
    reward = batch.sequences["reward"].to(torch.float64)
    bad = (~reward.isfinite()).nonzero().flatten()
    if len(bad):
        raise BatchError(
            f"the reward of trajectory {int(bad[0])} is {float(reward[bad[0]])}",
            why="one number that is not finite would spoil the advantages of the whole batch",
            fix="fail the episode instead (RewardResult.status), or return a finite reward",
        )
    lengths = generated_lengths(batch)
    reward = reward + overlong_penalty(lengths, config.overlong, max_new_tokens)
    reward = (reward + config.reward_bias) * config.reward_scale
    reward = reward.clamp(-config.reward_clip, config.reward_clip)
    if config.zero_truncated:
        reward = torch.where(is_truncated(batch), 0.0, reward)
    return normalize(reward, config.reward_norm, groups=batch.sequences["group"], mask=lengths > 0)
