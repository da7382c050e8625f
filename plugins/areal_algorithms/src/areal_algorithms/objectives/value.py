"""The critic's objective: a clipped regression of values on returns.

Knows: how far a value may move from its old one, and which distance is minimised.
Does not know: how returns were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_algorithms.reduction import Normalizer, check_normalizer, count, divide, token_sums, total
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum


class Distance(StrEnum):
    """What is minimised between value and return."""

    MSE = "mse"
    """d^2 / 2"""
    HUBER = "huber"
    """d^2 / 2 up to `huber_delta`, linear beyond."""


@frozen(kw_only=True)
class ValueConfig:
    """Options of objective `value`, under `algorithm.critic_objective.options`."""

    clip: float | None = field(
        default=0.2,
        validator=validators.optional(validators.gt(0.0)),  # type: ignore[arg-type]  # mypy takes float from the default
    )
    """How far a value may move from the one the advantages were computed with; None does not clip."""
    distance: Distance = Distance.MSE
    """Squared, or Huber's."""
    huber_delta: float = field(default=10.0, validator=validators.gt(0.0))
    """Where Huber's distance turns from squared to linear."""
    normalizer: Normalizer = Normalizer.TOKENS
    """What the loss is divided by."""


class ValueObjective:
    """Minimise max(f(V, R), f(clip(V), R)) over generated tokens."""

    def __init__(self, config: ValueConfig) -> None:
        check_normalizer(config.normalizer)
        self.config = config

    @property
    def outputs(self) -> frozenset[Output]:
        """Ask for values."""
        return frozenset({Output.VALUES})

    @property
    def columns(self) -> frozenset[str]:
        """Name the regression target, and the old values where the move is clipped."""
        return frozenset({"returns"} if self.config.clip is None else {"returns", "values"})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count generated tokens, or sequences with one."""
        return count(batch, self.config.normalizer)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return this micro-batch's share of the loss; 0 with a zero gradient if it has no generated token."""
        mask = batch.tokens["loss_mask"]
        values = torch.where(mask, columns[Output.VALUES], 0.0)  # stops the gradient of junk off the mask
        returns = batch.tokens["returns"].to(values.dtype)
        per_token = self._distance(values, returns)
        clipped = torch.zeros_like(mask)
        if self.config.clip is not None:
            old = batch.tokens["values"].to(values.dtype)
            bounded = self._distance(old + (values - old).clamp(-self.config.clip, self.config.clip), returns)
            clipped = bounded > per_token
            per_token = torch.maximum(per_token, bounded)
        amount = total(per_token, batch, self.config.normalizer)
        metrics = token_sums({"value_clip_fraction": clipped, "value_mean": values, "return_mean": returns}, batch)
        share = Sum(value=float(amount.detach()), weight=float(self.normalizer(batch)))
        return divide(amount, normalizer), {"loss": share, **metrics}

    def _distance(self, values: Tensor, returns: Tensor) -> Tensor:
        if self.config.distance is Distance.HUBER:
            return torch.nn.functional.huber_loss(values, returns, reduction="none", delta=self.config.huber_delta)
        return 0.5 * (values - returns).square()
