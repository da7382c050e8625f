"""The estimator `discounted`: rewards of tokens summed from each token on, with a discount of its own."""

from __future__ import annotations

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_algorithms.estimators.gae import discounted_suffix_sum
from areal_core.contract.batch import Batch


@frozen(kw_only=True)
class DiscountedConfig:
    """Options of estimator `discounted`."""

    discount: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """Of the reward of a token by each token before it: 0 takes a token's own alone, 1 all that follow in full."""


class Discounted:
    """A_t = sum over k of discount^k r_{t + k}, over generated tokens."""

    def __init__(self, config: DiscountedConfig) -> None:
        self.config = config

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return float64 [T], 0 off the mask."""
        index = batch.tokens["loss_mask"].nonzero().squeeze(1)
        found = torch.zeros(batch.num_tokens, dtype=torch.float64, device=batch.device)
        own, sequence = rewards.to(torch.float64)[index], batch.sequence_ids[index]
        found[index] = discounted_suffix_sum(own, sequence, self.config.discount) if self.config.discount else own
        return found
