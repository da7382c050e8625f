"""Supervised fine-tuning: the mean negative log-likelihood of the marked tokens.

Knows: log-probs and the loss mask.
Does not know: rewards, versions, or who wrote the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import Tensor

from areal_algorithms.reduction import Normalizer, check_normalizer, count, divide, total
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum


@frozen(kw_only=True)
class SFTConfig:
    """Options of objective `sft`."""

    normalizer: Normalizer = Normalizer.TOKENS
    """What the loss is divided by."""


class SFTObjective:
    """Minimise -log p over the loss mask."""

    def __init__(self, config: SFTConfig) -> None:
        check_normalizer(config.normalizer)
        self.config = config

    @property
    def outputs(self) -> frozenset[Output]:
        """Ask for log-probs."""
        return frozenset({Output.LOGPROBS})

    @property
    def columns(self) -> frozenset[str]:
        """Need nothing beyond what every batch holds."""
        return frozenset()

    def normalizer(self, batch: Batch) -> Tensor:
        """Count marked tokens, or sequences with one."""
        return count(batch, self.config.normalizer)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return this micro-batch's share of the loss in nats."""
        amount = total(-columns[Output.LOGPROBS], batch, self.config.normalizer)
        share = Sum(value=float(amount.detach()), weight=float(self.normalizer(batch)))
        return divide(amount, normalizer), {"loss": share}
