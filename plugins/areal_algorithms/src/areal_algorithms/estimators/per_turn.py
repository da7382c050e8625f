"""Advantages of whole turns: an action is all a policy says before somebody else speaks.

Knows: where turns begin; generalised advantage estimation over them.
Does not know: who speaks in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_algorithms.estimators.gae import GAEConfig, discounted_suffix_sum
from areal_core.contract.batch import Batch


class PerTurn:
    """GAE with one step per turn: every token of a turn has its turn's advantage.

    A turn's reward is the sum over its tokens, its value the critic's at its first token, which saw nothing of the
    turn; after the last turn it is 0. Without a critic, and with lam 1, a turn k before the last one has gamma^k of
    the final reward.
    """

    def __init__(self, config: GAEConfig) -> None:
        self._config = config

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return float64 [T], 0 off the mask."""
        mask, gamma, lam = batch.tokens["loss_mask"], self._config.gamma, self._config.lam
        result = torch.zeros_like(rewards)
        index = mask.nonzero().squeeze(1)
        if not len(index):
            return result
        sequence = batch.sequence_ids[index]
        begins = torch.ones_like(sequence, dtype=torch.bool)
        begins[1:] = (index[1:] != index[:-1] + 1) | (sequence[1:] != sequence[:-1])
        turn = begins.cumsum(0) - 1
        owner, first = sequence[begins], index[begins]
        reward = torch.zeros(len(first), dtype=rewards.dtype, device=rewards.device).index_add(0, turn, rewards[index])
        column = batch.tokens.get("values", None)
        value = torch.zeros_like(reward) if column is None else column.to(rewards.dtype)[first]
        next_value = torch.zeros_like(value)
        next_value[:-1] = torch.where(owner[1:] == owner[:-1], value[1:], 0.0)
        advantage = discounted_suffix_sum(reward + gamma * next_value - value, owner, gamma * lam)
        result[index] = advantage[turn]
        return result
