"""Two small objectives for tests of train engines: a policy gradient and a value regression.

Knows: the shape of an objective.
Does not know: PPO; see `areal_algorithms.objectives`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum


class PolicyGradient:
    """-sum over trained tokens of advantage * logprob, less `entropy` times their entropy, per trained token."""

    outputs = frozenset({Output.LOGPROBS, Output.ENTROPY})
    columns = frozenset({"advantages", "loss_mask"})

    def __init__(self, entropy: float = 0.01) -> None:
        """Weigh the entropy."""
        self._entropy = entropy

    def normalizer(self, batch: Batch) -> Tensor:
        """Count trained tokens."""
        mask: Tensor = batch.tokens["loss_mask"]
        return mask.sum().double()

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss, and the mean entropy."""
        mask = batch.tokens["loss_mask"]
        gain = batch.tokens["advantages"] * columns[Output.LOGPROBS] + self._entropy * columns[Output.ENTROPY]
        entropy = float(columns[Output.ENTROPY].detach()[mask].sum())
        return -gain[mask].sum() / normalizer, {"entropy": Sum(value=entropy, weight=float(mask.sum()))}


class ValueRegression:
    """Half the squared difference between `values` and the column `returns`, per trained token."""

    outputs = frozenset({Output.VALUES})
    columns = frozenset({"returns", "loss_mask"})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count trained tokens."""
        mask: Tensor = batch.tokens["loss_mask"]
        return mask.sum().double()

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss."""
        mask = batch.tokens["loss_mask"]
        return 0.5 * (columns[Output.VALUES] - batch.tokens["returns"])[mask].square().sum() / normalizer, {}
