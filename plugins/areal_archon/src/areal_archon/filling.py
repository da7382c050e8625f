"""Micro-batches filled up to one length, for a pipeline schedule sends tensors of one shape.

Knows: packed batches, where their sequences lie, placeholders.
Does not know: stages, schedules, losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_torch.attention import Packing
from areal_torch.context import ContextRanks
from areal_torch.microbatches import placeholder


@frozen(kw_only=True)
class Pass:
    """One micro-batch as stages see it, as long as every other of its step."""

    batch: Batch
    packing: Packing

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens that this rank's layers see."""
        return self.packing.filled(self.batch.tokens["input_ids"])[self.packing.part]


def filled(parts: Sequence[Batch], count: int, device: torch.device, context: ContextRanks | None) -> list[Pass]:
    """Return `count` passes of one length: the micro-batches, then placeholders.

    What fills a micro-batch are sequences of their own behind it, off the loss mask: no column of its own changes.
    """
    batches = [*parts, *(placeholder(device) for _ in range(count - len(parts)))]
    num_tokens = max(batch.num_tokens for batch in batches)
    longest = max(int(batch.lengths.max()) for batch in batches)
    alike = [_lengthen(batch, num_tokens - batch.num_tokens, longest) for batch in batches]
    return [Pass(batch=batch, packing=Packing.of(batch, context)) for batch in alike]


def _lengthen(batch: Batch, missing: int, longest: int) -> Batch:
    """Add sequences of zeros, none longer than `longest`: the model may have no positions beyond."""
    if not missing:
        return batch
    whole, rest = divmod(missing, longest)
    lengths = torch.tensor([longest] * whole + [rest] * (rest > 0), device=batch.device)
    return Batch.of(
        {name: _lengthened(column, missing) for name, column in batch.tokens.items()},
        {name: _lengthened(column, len(lengths)) for name, column in batch.sequences.items()},
        torch.cat([batch.lengths, lengths]),
    )


def _lengthened(column: Tensor, count: int) -> Tensor:
    return torch.cat([column, column.new_zeros((count, *column.shape[1:]))])
