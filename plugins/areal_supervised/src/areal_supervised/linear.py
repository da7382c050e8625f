"""A loss given by its value and its slope at every token: what losses that compare sequences become on an engine.

A preference loss needs both answers of a pair, and an engine may put them into different micro-batches or on different
ranks. So the pair is compared before, with the same weights, and the engine minimises

    sum over t of slope[t] * (x[t] - stop_gradient(x[t])) + value[t]

whose value is that of the loss and whose gradient is exactly its gradient, however a batch is cut (law 6). It costs a
forward pass.

Knows: slopes and values of tokens. Does not know: what was compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum

SLOPE, VALUE = "slope", "value"
_OUTPUTS = (Output.LOGPROBS, Output.VALUES)


@frozen(kw_only=True)
class LinearConfig:
    """Options of objective `linear`."""

    output: Output = field(default=Output.LOGPROBS, validator=validators.in_(_OUTPUTS))
    """The column the slopes belong to."""


class LinearObjective:
    """Minimise a loss by the columns `slope` and `value`, float32 [T], both read on the loss mask alone."""

    def __init__(self, config: LinearConfig) -> None:
        self.config = config

    @property
    def outputs(self) -> frozenset[Output]:
        """Ask for the one column."""
        return frozenset({self.config.output})

    @property
    def columns(self) -> frozenset[str]:
        """Name what the comparison put into the batch."""
        return frozenset({SLOPE, VALUE})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count pairs, float64 scalar: each sequence is half of one."""
        return torch.tensor(batch.num_sequences / 2, dtype=torch.float64, device=batch.device)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return this micro-batch's share of the loss."""
        x = columns[self.config.output]
        linear = batch.tokens[SLOPE].to(x.dtype) * (x - x.detach()) + batch.tokens[VALUE].to(x.dtype)
        amount = torch.where(batch.tokens["loss_mask"], linear, 0.0).sum()
        share = Sum(value=float(amount.detach()), weight=float(self.normalizer(batch)))
        return amount / normalizer.clamp_min(0.5).to(amount.dtype), {"loss": share}
