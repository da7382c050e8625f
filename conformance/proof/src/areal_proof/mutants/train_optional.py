"""Trainers that get an adapter wrong: what is trained, what is merged, what is saved.

Knows: the parts of the second trainer that an adapter goes through.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import CheckpointError, PlanError
from areal_core.contract.train import (
    EngineInfo,
    LoraSpec,
    Objective,
    OptimizerSpec,
    RankContext,
    TrainReport,
    TrainSpec,
)
from areal_core.contract.weights import Receipt, WeightSink
from areal_proof.mutants import mutant
from areal_proof.second.train.adam import AdamW
from areal_proof.second.train.adapters import Adapters
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks

ENGINE = "train/second"


class Rebuilt(SecondTrainEngine):
    """Built rightly, then spoiled: `spoil` returns what takes its place. Without an adapter nothing is spoiled."""

    def _build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super()._build(spec, ranks, device, dtype)
        return self.spoil(here) if spec.lora is not None else here

    def spoil(self, here: Started) -> Started:
        """Return the spoiled parts."""
        return here


class Misread(SecondTrainEngine):
    """Reads another adapter out of the spec than it says."""

    def _build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        if spec.lora is None:
            return super()._build(spec, ranks, device, dtype)
        misread = attrs.evolve(spec, lora=self.misread(spec.lora), seed=self.reseed(spec.seed, ranks))
        here = super()._build(misread, ranks, device, dtype)
        return attrs.evolve(here, spec=spec)

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Return the adapter built."""
        return lora

    def reseed(self, seed: int, ranks: Ranks) -> int:
        """Return the seed A is drawn from."""
        return seed


@mutant(
    ENGINE,
    killers=("train.lora.targets", "train.lora.sent_is_used"),
    incident="verl#7495",
    row="served-policy-changes",
)
class SendsFrozenBase(SecondTrainEngine):
    """Sends the frozen base weights and leaves the adapter behind: the fleet serves the first policy for ever."""

    def _exported(self, here: Started) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in here.weights.items()}


@mutant(ENGINE, killers=("train.lora.targets", "train.lora.sent_is_used"), row="served-policy-changes")
class MergesOnce(SecondTrainEngine):
    """Keeps the merged weights of the first send and sends them again."""

    def _exported(self, here: Started) -> dict[str, Tensor]:
        if here.spec.lora is None:
            return super()._exported(here)
        if not hasattr(self, "_merged"):
            self._merged = {name: tensor.clone() for name, tensor in super()._exported(here).items()}
        return self._merged


@mutant(ENGINE, killers=("train.lora.send_disturbs_nothing",))
class MergesForGood(SecondTrainEngine):
    """Merges the adapter into the base to send it, and never takes it out again."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        receipt = super().send_weights(sink, version)
        here = self._running()
        with torch.no_grad():
            for name, tensor in here.weights.items():
                tensor.copy_(here.adapters.merged(name, tensor))
        return receipt


@mutant(ENGINE, killers=("train.lora.folder",))
class SavesBaseFolder(SecondTrainEngine):
    """Writes the base model to the folder, and sends the merged one."""

    def save_weights(self, path: Path) -> None:
        here = self._running()
        self._started = attrs.evolve(here, adapters=Adapters())
        try:
            super().save_weights(path)
        finally:
            self._started = here


@mutant(ENGINE, killers=("train.lora.sent_is_used",))
class SendsUnscaled(SecondTrainEngine):
    """Merges B A without alpha / rank, which the forward pass uses."""

    def _exported(self, here: Started) -> dict[str, Tensor]:
        return super()._exported(attrs.evolve(here, adapters=Adapters(tensors=here.adapters.tensors, scale=1.0)))

    def weights_in_use(self) -> dict[str, Tensor]:
        """Return merged weights of another scale."""
        here = self._running()
        plain = Adapters(tensors=here.adapters.tensors, scale=1.0)
        return {name: plain.merged(name, tensor) for name, tensor in here.weights.items()}


@mutant(ENGINE, killers=("train.lora.scale",))
class ScalesByAlphaAlone(Misread):
    """Computes W x + alpha B A x: alpha is not divided by the rank."""

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Multiply by what the division takes away."""
        return attrs.evolve(lora, alpha=lora.alpha * lora.rank)


@mutant(ENGINE, killers=("train.lora.scale",))
class ScalesByRootOfRank(Misread):
    """Divides alpha by the square root of the rank."""

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Multiply by what the division takes away too much."""
        return attrs.evolve(lora, alpha=lora.alpha * math.sqrt(lora.rank))


@mutant(ENGINE, killers=("train.lora.rank",))
class AlwaysRankTwo(Misread):
    """Builds every adapter with two rows, the right scale kept."""

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Return another rank."""
        return attrs.evolve(lora, rank=2, alpha=2 * lora.alpha / lora.rank)


@mutant(ENGINE, killers=("train.lora.targets",))
class TargetsByLastWord(Misread):
    """Reads `layers.1.mlp.up_proj` as `up_proj`, in every layer."""

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Cut the targets."""
        return attrs.evolve(lora, targets=[target.rpartition(".")[2] for target in lora.targets])


@mutant(ENGINE, killers=("train.lora.targets",))
class FirstTargetOnly(Misread):
    """Puts adapters on the layers the first target names, and forgets the others."""

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Return the first target."""
        return attrs.evolve(lora, targets=lora.targets[:1])


@mutant(ENGINE, killers=("train.lora.no_such_target",))
class UnknownTargetsTrainAll(SecondTrainEngine):
    """Where no layer has a target's name, trains the whole model instead."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Drop an adapter that fits nowhere."""
        try:
            return super().start(spec, rank)
        except PlanError:
            return super().start(attrs.evolve(spec, lora=None), rank)


@mutant(ENGINE, killers=("train.lora.seed",))
class AdapterSeedIgnored(Misread):
    """Draws the same A whatever the spec's seed is."""

    def reseed(self, seed: int, ranks: Ranks) -> int:
        """Return a constant."""
        return 0


@mutant(ENGINE, killers=("train.lora.ranks",), ranks=2)
class AdapterDrawnPerRank(Misread):
    """Draws another A on every rank, and adds up their gradients."""

    def reseed(self, seed: int, ranks: Ranks) -> int:
        """Return each rank's own."""
        return seed + ranks.rank


@mutant(ENGINE, killers=("train.lora.starts_as_base",))
class NothingStartsAtZero(Rebuilt):
    """Draws B at random as well, so that training begins at another model."""

    def spoil(self, here: Started) -> Started:
        """Fill B."""
        with torch.no_grad():
            for name, tensor in here.adapters.tensors.items():
                if name.endswith(".B"):
                    tensor.fill_(0.01)
        return here


@mutant(ENGINE, killers=("train.lora.learns", "train.lora.targets"))
class EverythingStartsAtZero(Rebuilt):
    """Starts A at zero too: no gradient ever leaves zero."""

    def spoil(self, here: Started) -> Started:
        """Empty A."""
        with torch.no_grad():
            for tensor in here.adapters.tensors.values():
                tensor.zero_()
        return here


def _trained_by(here: Started, adam: AdamW) -> Started:
    """Return the parts with another optimizer, whose state is saved in place of the right one's."""
    table = {name: tensor for name, tensor in here.table.items() if not name.startswith(("first/", "second/"))}
    return attrs.evolve(here, adam=adam, table={**table, **adam.moments})


@mutant(ENGINE, killers=("train.lora.rank", "train.lora.gradient", "train.lora.clipping"))
class TrainsTheBaseToo(Rebuilt):
    """Trains the base together with its adapter."""

    def spoil(self, here: Started) -> Started:
        """Give everything to the optimizer."""
        if here.spec.optimizer is None:
            return here
        everything = {**here.weights, **here.adapters.tensors}
        for tensor in everything.values():
            tensor.requires_grad_(True)
        return _trained_by(here, AdamW(everything, here.spec.optimizer))


@mutant(ENGINE, killers=("train.lora.rank", "train.lora.targets"))
class DecaysTheBase(Rebuilt):
    """Gives the frozen base to the optimizer for its weight decay."""

    def spoil(self, here: Started) -> Started:
        """Decay with every step."""
        if here.adam is None:
            return here
        return attrs.evolve(here, adam=_Decaying(here.adam.trained, here.adam.spec).also(here.weights))


class _Decaying(AdamW):
    """Shrinks other tensors with every step. Its moments are not in the saved table; no check of state looks at it."""

    def also(self, others: Mapping[str, Tensor]) -> _Decaying:
        """Remember what to shrink."""
        self.others = others
        return self

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], norm: float) -> bool:
        """Step, and shrink."""
        for tensor in self.others.values():
            tensor.mul_(1 - self.lr * self.spec.weight_decay)
        return super().step(gradients, norm)


@mutant(ENGINE, killers=("train.lora.clipping",))
class ClipsEachMatrix(Rebuilt):
    """Clips the gradient of every A and B by its own norm."""

    def spoil(self, here: Started) -> Started:
        """Take another optimizer."""
        if here.adam is None:
            return here
        return _trained_by(here, _ClippingEach(here.adam.trained, here.adam.spec))


class _ClippingEach(AdamW):
    def __init__(self, trained: Mapping[str, Tensor], spec: OptimizerSpec) -> None:
        super().__init__(trained, spec)
        self._limit = spec.max_grad_norm
        self.spec = attrs.evolve(spec, max_grad_norm=0.0)

    def step(self, gradients: Mapping[str, Tensor], norm: float) -> bool:
        """Clip one by one."""
        if not self._limit:
            return super().step(gradients, norm)
        each = {n: g * min(1.0, self._limit / max(float(g.norm()), 1e-12)) for n, g in gradients.items()}
        return super().step(each, norm)


@mutant(ENGINE, killers=("train.lora.gradient",))
class CountsTheBaseInTheNorm(SecondTrainEngine):
    """Reports, and clips by, a norm in which the frozen base has a part."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Add something to the norm."""
        report = super().train_step(batch, objective)
        lora = self._running().spec.lora is not None
        return attrs.evolve(report, grad_norm=math.hypot(report.grad_norm, 1.0)) if lora else report


@mutant(ENGINE, killers=("train.lora.learns",))
class AdapterClimbs(Rebuilt):
    """Steps the adapter up the loss."""

    def spoil(self, here: Started) -> Started:
        """Take another optimizer."""
        if here.adam is None:
            return here
        return _trained_by(here, _Climbing(here.adam.trained, here.adam.spec))


class _Climbing(AdamW):
    def step(self, gradients: Mapping[str, Tensor], norm: float) -> bool:
        """Turn the gradient round."""
        return super().step({name: -gradient for name, gradient in gradients.items()}, norm)


@mutant(ENGINE, killers=("train.lora.state",))
class StateWithoutAdapter(Rebuilt):
    """Leaves A and B out of the saved state; the optimizer's moments are in it."""

    def spoil(self, here: Started) -> Started:
        """Take them out of the table."""
        return attrs.evolve(here, table={n: t for n, t in here.table.items() if not n.startswith("adapters/")})


@mutant(ENGINE, killers=("train.lora.state",))
class StateWithoutMomentsOfA(Rebuilt):
    """Forgets the moments of every A in the saved state."""

    def spoil(self, here: Started) -> Started:
        """Take them out of the table."""
        lost = ("first/", "second/")
        return attrs.evolve(
            here, table={n: t for n, t in here.table.items() if not (n.startswith(lost) and n.endswith(".A"))}
        )


@mutant(ENGINE, killers=("train.lora.state_of_another",))
class ForeignAdapterIgnored(SecondTrainEngine):
    """Goes on silently with what it has where a state is of another adapter."""

    def load_state(self, path: Path) -> None:
        """Swallow the refusal."""
        with contextlib.suppress(CheckpointError):
            super().load_state(path)
