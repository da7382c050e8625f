"""How per-token losses become one number: sums over one global count, never means of means.

Knows: the two counts an objective may be divided by.
Does not know: micro-batches and ranks; the engine adds the counts over them (law 6).
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from areal_core.algorithms.ratios import sequence_mean
from areal_core.contract.train import Sum
from areal_core.data.batch import Batch


class Normalizer(StrEnum):
    """What an objective is a mean over."""

    TOKENS = "tokens"
    """Generated tokens: a long answer weighs more than a short one (DAPO, arXiv 2503.14476)."""
    SEQUENCES = "sequences"
    """Trajectories with a generated token, each by the mean over its own (GRPO, GSPO)."""


def count(batch: Batch, kind: Normalizer) -> Tensor:
    """Count this batch's share of the normaliser, float64 scalar, before anything is clipped or dropped."""
    mask = batch.tokens["loss_mask"]
    if kind is Normalizer.TOKENS:
        return mask.sum().to(torch.float64)
    return torch.unique(batch.sequence_ids[mask]).numel() * torch.ones((), dtype=torch.float64, device=mask.device)


def total(per_token: Tensor, batch: Batch, kind: Normalizer) -> Tensor:
    """Add up a loss [T] over the mask so that total / count is the mean of that kind.

    Tokens that another rule dropped count as 0, in the sum and in the sequence's own mean alike.
    """
    mask = batch.tokens["loss_mask"]
    if kind is Normalizer.TOKENS:
        return torch.where(mask, per_token, 0.0).sum()
    share = sequence_mean(torch.ones_like(per_token), batch)  # 1 on the mask
    zeros = torch.zeros(batch.num_sequences, dtype=per_token.dtype, device=per_token.device)
    tokens = zeros.index_add(0, batch.sequence_ids, share).clamp_min(1.0)
    return (torch.where(mask, per_token, 0.0) / tokens[batch.sequence_ids]).sum()


def divide(amount: Tensor, normalizer: Tensor) -> Tensor:
    """Return amount / normalizer in the amount's dtype; a batch without a single token gives 0, not NaN."""
    return amount / normalizer.clamp_min(1.0).to(amount.dtype)


def token_sums(columns: dict[str, Tensor], batch: Batch) -> dict[str, Sum]:
    """Sum metric columns [T] over the mask, each with the number of its tokens, in one transfer to the host."""
    mask = batch.tokens["loss_mask"]
    rows = [torch.where(mask, column.detach().to(torch.float32), 0.0).sum() for column in columns.values()]
    *values, weight = torch.stack([*rows, mask.sum().to(torch.float32)]).tolist()
    return {name: Sum(value=value, weight=weight) for name, value in zip(columns, values, strict=True)}
