"""Generalised advantage estimation on packed sequences with gaps.

Knows: rewards, values and a mask per token, and whether a sequence was cut off. The estimator `gae`.
Does not know: where the rewards come from, or what becomes of the advantages.
"""

from __future__ import annotations

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_algorithms.rewards import is_truncated
from areal_core.contract.batch import Batch


@frozen(kw_only=True)
class GAEConfig:
    """Options of estimator `gae`, filled in from `algorithm.advantages.gamma` and `lam`."""

    gamma: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """Discount per token."""
    lam: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """1 trusts rewards alone, 0 the critic alone."""


class GAE:
    """The estimator `gae`: values of a critic, or none, which makes it a sum of what follows."""

    def __init__(self, config: GAEConfig) -> None:
        self.config = config

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return float64 [T], 0 off the mask."""
        column = batch.tokens.get("values", None)
        values = torch.zeros_like(rewards) if column is None else column.to(torch.float64)
        return gae(batch, rewards, values, is_truncated(batch), gamma=self.config.gamma, lam=self.config.lam)


def gae(batch: Batch, rewards: Tensor, values: Tensor, truncated: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Return the advantage of every generated token (arXiv 1506.02438).

    Tokens off the loss mask (prompt, tool results, later turns of a user) are no actions: they are
    skipped, so the token before a gap sees the value and the advantage of the token after it.

        delta_t = r_t + gamma * V_next(t) - V_t,   A_t = delta_t + gamma * lam * A_next(t)

    V after the last generated token is 0 where the sequence ended, and the value at the sequence's
    last position where it was `truncated`. If that position is the last generated token itself, it
    is the newest value there is: a value is read before its token.

    Args:
        rewards: [T], read on the mask only.
        values: [T], read on the mask and at the last position of truncated sequences.
        truncated: bool [N].

    Returns:
        float64 [T], 0 off the mask.
    """
    index = batch.tokens["loss_mask"].nonzero().squeeze(1)
    sequence = batch.sequence_ids[index]
    value = values.to(torch.float64)[index]

    last_position = (batch.cu_seqlens[1:].to(torch.int64) - 1).clamp_min(0)
    after_end = torch.zeros(batch.num_sequences, dtype=torch.float64, device=batch.device)
    if batch.num_tokens:
        after_end = torch.where(truncated, values.to(torch.float64)[last_position], after_end)
    next_value = after_end[sequence]
    same = sequence[1:] == sequence[:-1]
    next_value[:-1] = torch.where(same, value[1:], next_value[:-1])

    delta = rewards.to(torch.float64)[index] + gamma * next_value - value
    result = torch.zeros(batch.num_tokens, dtype=torch.float64, device=batch.device)
    result[index] = discounted_suffix_sum(delta, sequence, gamma * lam)
    return result


def discounted_suffix_sum(x: Tensor, sequence: Tensor, discount: float) -> Tensor:
    """Return sum_j discount^j * x[i + j] over the rest of each sequence.

    Sums double in reach with every pass, so the longest sequence L costs log2(L) passes
    over the packed column and no loop over tokens.

    Args:
        x: [M].
        sequence: int64 [M], ascending; equal numbers form one sequence.
    """
    longest = int(sequence.bincount().max()) if len(sequence) else 0
    reach, factor = 1, discount
    while reach < longest:
        same = sequence[:-reach] == sequence[reach:]
        x = torch.cat([x[:-reach] + torch.where(same, factor * x[reach:], 0.0), x[-reach:]])
        reach, factor = 2 * reach, factor * factor
    return x
