"""Objectives that show what ranks do with losses, normalisers, metrics and random numbers.

Knows: the contract of an objective.
Does not know: engines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, Sum
from areal_torch.testing.objectives import ValueRegression

LONG = 10
"""Tokens of a sequence that gives the metric `long`, which most shards do not have."""


class Gain:
    """-sum of advantage * logprob and a little entropy, divided by trained tokens plus half the sequences.

    The metrics are such that a mean in place of a sum, or one rank's in place of all, shows: `tokens` and
    `sequences` are counts, `long` comes from micro-batches with a long sequence only, `share` has weights that differ.
    """

    outputs = frozenset({Output.LOGPROBS, Output.ENTROPY})
    columns = frozenset({"advantages", "loss_mask"})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count trained tokens, and sequences half."""
        trained: Tensor = batch.tokens["loss_mask"].sum().double()
        return trained + 0.5 * batch.num_sequences

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss, and metrics."""
        mask = batch.tokens["loss_mask"]
        gain = batch.tokens["advantages"] * columns[Output.LOGPROBS] + 0.05 * columns[Output.ENTROPY]
        metrics = {
            "tokens": Sum(value=float(batch.num_tokens), weight=1.0),
            "sequences": Sum(value=float(batch.num_sequences), weight=float(batch.num_sequences)),
            "share": Sum(value=float(batch.tokens["advantages"].double()[mask].sum()), weight=float(mask.sum())),
        }
        if int(batch.lengths.max()) >= LONG:
            metrics["long"] = Sum(value=float((batch.lengths >= LONG).sum()), weight=2.0)
        return -gain[mask].sum() / normalizer, metrics


class Drawing(Gain):
    """As Gain, scaled by a random number drawn while the loss is computed; `drawn` keeps the numbers."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss, and metrics."""
        number = torch.rand((), device=columns[Output.LOGPROBS].device)
        self.drawn.append(float(number))
        loss, metrics = super().loss(columns, batch, normalizer)
        return loss * (0.5 + number), metrics


class Dying(Gain):
    """As Gain, but its process is killed in the middle of the step, as the kernel's out-of-memory killer does it."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(columns, batch, normalizer)


OBJECTIVES: Mapping[str, Any] = {"gain": Gain, "values": ValueRegression, "drawing": Drawing, "dying": Dying}
"""Name -> class, for programs, whose arguments are json. Any: classes of the protocol Objective."""
