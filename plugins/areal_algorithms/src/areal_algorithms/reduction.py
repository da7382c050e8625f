"""Sums over generated tokens: per sequence, per batch, and as losses over one global count.

Knows: the loss mask, sequence boundaries, and the three counts an objective may be divided by.
Does not know: micro-batches and ranks; the engine adds the counts over them (law 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import torch
from torch import Tensor

from areal_core.algorithms.sums import EXTREMES
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ConfigError
from areal_core.contract.train import Sum


class Normalizer(StrEnum):
    """What an objective is a mean over."""

    TOKENS = "tokens"
    """Generated tokens: a long answer weighs more than a short one (DAPO, arXiv 2503.14476)."""
    SEQUENCES = "sequences"
    """Trajectories with a generated token, each by the mean over its own tokens (GRPO, arXiv 2402.03300)."""
    CONSTANT = "constant"
    """Trajectories with a generated token, each by the sum over its tokens / a constant (Dr. GRPO, 2503.20783)."""


def generated_lengths(batch: Batch) -> Tensor:
    """Count the generated tokens of each trajectory, int64 [N]."""
    counts = torch.zeros(batch.num_sequences, dtype=torch.int64, device=batch.device)
    return counts.index_add(0, batch.sequence_ids, batch.tokens["loss_mask"].to(torch.int64))


def sequence_mean(x: Tensor, batch: Batch) -> Tensor:
    """Return to every generated token the mean of x over its sequence's generated tokens, 0 elsewhere [T]."""
    mask, ids = batch.tokens["loss_mask"], batch.sequence_ids
    zeros = torch.zeros(batch.num_sequences, dtype=x.dtype, device=x.device)
    mean = zeros.index_add(0, ids, torch.where(mask, x, 0.0)) / generated_lengths(batch).clamp_min(1).to(x.dtype)
    return torch.where(mask, mean[ids], 0.0)


def sequence_sum(x: Tensor, batch: Batch) -> Tensor:
    """Return to every generated token the sum of x over its sequence's generated tokens, 0 elsewhere [T]."""
    mask, ids = batch.tokens["loss_mask"], batch.sequence_ids
    zeros = torch.zeros(batch.num_sequences, dtype=x.dtype, device=x.device)
    return torch.where(mask, zeros.index_add(0, ids, torch.where(mask, x, 0.0))[ids], 0.0)


def check_normalizer(kind: Normalizer, constant: int = 0) -> None:
    """Refuse a normaliser that is a constant without one.

    Raises:
        ConfigError: names the keys.
    """
    if kind is Normalizer.CONSTANT and constant < 1:
        raise ConfigError(
            "normalizer is constant, and constant_tokens is not set",
            why="every trajectory's sum is divided by that number of tokens; only the objective ppo has it",
            fix="set constant_tokens to what a trajectory may have at most, or normalizer to tokens or sequences",
        )


def count(batch: Batch, kind: Normalizer, constant: int = 0) -> Tensor:
    """Count this batch's share of the normaliser, float64 scalar, before anything is clipped or dropped."""
    lengths = generated_lengths(batch)
    counted = (lengths if kind is Normalizer.TOKENS else lengths > 0).sum().to(torch.float64)
    return counted * constant if kind is Normalizer.CONSTANT else counted


def total(per_token: Tensor, batch: Batch, kind: Normalizer) -> Tensor:
    """Add up a loss [T] over the mask, scalar, so that total / count is the mean of that kind.

    A token another rule dropped is worth 0 and still counted, in the batch and in its sequence.
    """
    masked = torch.where(batch.tokens["loss_mask"], per_token, 0.0)
    if kind is Normalizer.SEQUENCES:
        masked = masked / generated_lengths(batch).clamp_min(1).to(masked.dtype)[batch.sequence_ids]
    return masked.sum()


def divide(amount: Tensor, normalizer: Tensor) -> Tensor:
    """Return amount / normalizer in the amount's dtype; a batch without a single token gives 0, not NaN."""
    return amount / normalizer.clamp_min(1.0).to(amount.dtype)


def token_sums(columns: Mapping[str, Tensor], batch: Batch, extremes: Sequence[str] = ()) -> dict[str, Sum]:
    """Sum metric columns [T] over the mask, each with the number of its tokens; of some, the `extremes` too."""
    mask = batch.tokens["loss_mask"]
    rows = [torch.where(mask, column.detach().to(torch.float32), 0.0).sum() for column in columns.values()]
    for name in extremes:
        inside = columns[name].detach().to(torch.float32).masked_select(mask)
        rows += inside.aminmax() if len(inside) else ()
    *values, weight = torch.stack([*rows, mask.sum().to(torch.float32)]).tolist()
    weights = dict.fromkeys(columns, weight) | {f"{name}{end}": 1.0 for name in extremes for end in EXTREMES if weight}
    return {name: Sum(value=v, weight=weights[name]) for name, v in zip(weights, values, strict=True)}
