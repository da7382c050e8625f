"""What thirty steps of learning must amount to: the oracle follows the same samples in float64 and is compared at each.

A pair samples, and the oracle is trained on what was sampled, so that it does not matter how tokens were drawn. From
the first step on its weights are its own: whatever a pair does a little wrong adds up. Log-probs are compared with
those of the weights the pair has, or the drift of rounding would be seen in them first.

Knows: the objective and the reward, the oracle's path, and how far from it a pair is.
Does not know: how a pair samples and steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_optimizer import OracleTrainer
from areal_core.contract.batch import Batch
from areal_core.contract.train import OptimizerSpec, Output, Sum, TrainReport

ENTROPY = 0.02
NOWHERE = 0.02
"""A tensor that moves less than this share of the others' root mean square is compared as if it had moved so far."""

FAR = 1e9
"""What is no number is so far away: reports are JSON, which has no infinity."""


class Surrogate:
    """-sum over trained tokens of advantage * p / behaviour p, less a little of their entropy, per trained token.

    What tokens were sampled with counts in the loss and in the gradient, as it does in PPO where nothing is clipped.
    """

    outputs = frozenset({Output.LOGPROBS, Output.ENTROPY})
    columns = frozenset({"advantages", "logprobs", "loss_mask"})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count trained tokens."""
        mask: Tensor = batch.tokens["loss_mask"]
        return mask.sum().double()

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss; no metrics."""
        mask = batch.tokens["loss_mask"]
        ratio = (columns[Output.LOGPROBS] - batch.tokens["logprobs"]).exp()
        gain = batch.tokens["advantages"] * ratio + ENTROPY * columns[Output.ENTROPY]
        return -gain[mask].sum() / normalizer, {}


def rewarded(batch: Batch) -> Batch:
    """Return the batch with advantages [T]: 1 for a token of an even id, which is to be learned, else -0.4."""
    even = batch.tokens["input_ids"] % 2 == 0
    return batch.with_tokens(advantages=torch.where(even, 1.0, -0.4))


def reward(batch: Batch) -> float:
    """Return the share of sampled tokens that are rewarded, in [0, 1]."""
    ids: Tensor = batch.tokens["input_ids"][batch.tokens["loss_mask"]]
    return float((ids % 2 == 0).double().mean())


@frozen(kw_only=True)
class Gap:
    """How far one step of a pair is from the oracle's; each is a share of what the oracle has.

    Example: Gap(step=3, what="the gradient norm", size=2e-6, got=0.71, wanted=0.71)
    """

    step: int
    what: str
    size: float
    got: float
    wanted: float

    def __str__(self) -> str:
        """Say it as a report does."""
        return f"step {self.step}: {self.what} is {self.got:.9g}, the oracle's {self.wanted:.9g}: {self.size:.2e} apart"


class LearningPath:
    """The oracle's path, and the gaps of a pair that is to follow it."""

    def __init__(self, model: Path, optimizer: OptimizerSpec, temperature: float) -> None:
        self._oracle = Oracle(model, temperature=temperature)
        self._trainer = OracleTrainer(self._oracle, optimizer)
        self._start = self._trainer.weights
        self._steps = 0
        self.gaps: list[Gap] = []

    @property
    def worst(self) -> Gap:
        """Return the largest gap so far."""
        return max(self.gaps, key=lambda gap: gap.size)

    def largest(self) -> dict[str, float]:
        """Return the size of the largest gap by what it is of; of all tensors together as "weights"."""
        found: dict[str, float] = {}
        for gap in self.gaps:
            name = "weights" if gap.what.startswith("the way of ") else gap.what.removeprefix("the ")
            found[name] = max(found.get(name, 0.0), gap.size)
        return found

    def sampled(self, batch: Batch, weights: Mapping[str, Tensor], told: Mapping[str, Tensor]) -> None:
        """Compare log-probs [sampled tokens], by who gives them, with those of the weights the pair has, in nats."""
        own = self._trainer.weights
        with torch.no_grad():
            wanted = self._oracle.load(weights).columns(batch)[Output.LOGPROBS][batch.tokens["loss_mask"]]
        self._oracle.load(own)
        for who, column in told.items():
            apart = (column.double() - wanted).abs().nan_to_num(nan=FAR)
            place = int(apart.argmax())
            self._add(f"the {who} log-prob", float(apart[place]), float(column[place]), float(wanted[place]))

    def stepped(self, batch: Batch, report: TrainReport, weights: Mapping[str, Tensor]) -> None:
        """Make the oracle's step; compare what was reported of the pair's, and the weights it left."""
        self._trainer.step(batch, Surrogate())
        self._steps += 1
        usual = float(batch.tokens["advantages"][batch.tokens["loss_mask"]].abs().mean())
        self._number("the loss", report.loss, self._trainer.loss, usual)
        self._number("the gradient norm", report.grad_norm, self._trainer.norm, self._trainer.norm)
        self._number("the learning rate", report.lr, self._trainer.lr, self._trainer.lr)
        self._weights(weights)

    def _weights(self, weights: Mapping[str, Tensor]) -> None:
        """Compare each tensor with the oracle's, as a share of how far that has moved since the start.

        What rounding a tensor to the dtype of the folder explains is no gap.
        """
        mine = self._trainer.weights
        moved = {name: float((tensor - self._start[name]).norm()) for name, tensor in mine.items()}
        count = sum(tensor.numel() for tensor in mine.values())
        usual = math.sqrt(sum(length**2 for length in moved.values()) / count)
        for name, tensor in mine.items():
            made = weights[name].double()
            least = NOWHERE * usual * math.sqrt(tensor.numel())
            rounding = torch.finfo(weights[name].dtype).eps * float(tensor.norm())
            size = max(0.0, float((made - tensor).norm()) - rounding) / max(moved[name], least)
            self._add(f"the way of {name}", size, float((made - self._start[name]).norm()), moved[name])

    def _number(self, what: str, got: float, wanted: float, scale: float) -> None:
        self._add(what, abs(got - wanted) / scale, got, wanted)

    def _add(self, what: str, size: float, got: float, wanted: float) -> None:
        size = size if size < FAR else FAR  # nan too
        self.gaps.append(Gap(step=self._steps, what=what, size=size, got=got, wanted=wanted))
