"""Trainers that get an adapter wrong: what is trained, what is merged, what is saved.

Knows: the parts of the second trainer that an adapter goes through.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from areal_core.contract.errors import CheckpointError, PlanError
from areal_core.contract.train import (
    LoraSpec,
    OptimizerSpec,
    RankContext,
    TrainSpec,
)
from areal_proof.mutants.rows import Original, after, breaking, catches, given, put, row, then, within
from areal_proof.mutants.train_parts import copied, replace
from areal_proof.second.train.adam import AdamW
from areal_proof.second.train.adapters import Adapters
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import lora
from areal_torch.offload import DeviceMemory
from areal_torch.trainer import running

ENGINE = "train/second"
breaks = breaking(ENGINE, SecondTrainEngine)


class Rebuilt(SecondTrainEngine):
    """Built rightly, then spoiled: `spoil` returns what takes its place. Without an adapter nothing is spoiled."""

    def build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super().build(spec, ranks, device, dtype)
        return self.spoil(here) if spec.lora is not None else here

    def spoil(self, here: Started) -> Started:
        """Return the spoiled parts."""
        return here


class Misread(SecondTrainEngine):
    """Reads another adapter out of the spec than it says."""

    def build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        if spec.lora is None:
            return super().build(spec, ranks, device, dtype)
        misread = attrs.evolve(spec, lora=self.misread(spec.lora), seed=self.reseed(spec.seed, ranks))
        here = super().build(misread, ranks, device, dtype)
        return attrs.evolve(here, spec=spec)

    def misread(self, lora: LoraSpec) -> LoraSpec:
        """Return the adapter built."""
        return lora

    def reseed(self, seed: int, ranks: Ranks) -> int:
        """Return the seed A is drawn from."""
        return seed


@breaks("send_weights", "train.lora.send_disturbs_nothing")
def MergesForGood(original: Original, self: SecondTrainEngine) -> Any:
    """Merges the adapter into the base to send it, and never takes it out again."""
    receipt = original()
    here = self.running()
    with torch.no_grad():
        for name, tensor in here.weights.items():
            tensor.copy_(here.adapters.merged(name, tensor))
    return receipt


@breaks("weights_in_use", "train.lora.sent_is_used",
        exported=given(adapters=lambda here: Adapters(tensors=here.adapters.tensors, scale=1.0)))  # fmt: skip
def SendsUnscaled(self: Any) -> Any:
    """Merges B A without alpha / rank, which the forward pass uses."""
    here = self.running()
    plain = Adapters(tensors=here.adapters.tensors, scale=1.0)
    return {name: plain.merged(name, tensor) for name, tensor in here.weights.items()}


@breaks("start", "train.lora.no_such_target")
def UnknownTargetsTrainAll(original: Original, spec: TrainSpec, rank: RankContext) -> Any:
    """Where no layer has a target's name, trains the whole model instead."""
    try:
        return original()
    except PlanError:
        return original(attrs.evolve(spec, lora=None), rank)


def _layers_only() -> AbstractContextManager[None]:
    original = lora._targets

    def targets(model: Any, spec: LoraSpec) -> dict[str, nn.Linear]:
        head = model.get_output_embeddings()
        layers = [name for name, each in model.named_modules() if isinstance(each, nn.Linear) and each is not head]
        known = [target for target in spec.targets if any(name.endswith(target) for name in layers)]
        return original(model, attrs.evolve(spec, targets=known))

    return put(lora, _targets=targets)


def _of_trained(engine: ReferenceTrainEngine) -> DeviceMemory:
    trainer = running(engine.trainer)
    moments = trainer.optimizer.tensors if trainer.optimizer is not None else []
    return DeviceMemory(trainer.device, [*trainer.state.parameters.values(), *moments])


breaks_reference = breaking("train/reference", ReferenceTrainEngine)
REFERENCE_ROWS = breaks_reference.rows(
    row("SkipsWhatIsNoLayer", "Puts adapters on layers, and leaves out in silence what else the targets name.",
        "train.lora.no_layer", start=within(_layers_only)),
    row("AdapterAloneMoves", "Moves what is trained away; the model below an adapter stays on the device.",
        "train.offload.frees", row="sleep-is-real",
        start=then(lambda self, spec: replace(self, memory=_of_trained(self)) if spec.lora is not None else None)),
)  # fmt: skip


breaks_misread = breaking(ENGINE, Misread)
MISREAD_ROWS = breaks_misread.rows(
    row("ScalesByAlphaAlone", "Computes W x + alpha B A x: alpha is not divided by the rank.", "train.lora.scale",
        misread=lambda lora: attrs.evolve(lora, alpha=lora.alpha * lora.rank)),
    row("ScalesByRootOfRank", "Divides alpha by the square root of the rank.", "train.lora.scale",
        misread=lambda lora: attrs.evolve(lora, alpha=lora.alpha * math.sqrt(lora.rank))),
    row("AlwaysRankTwo", "Builds every adapter with two rows, the right scale kept.", "train.lora.rank",
        misread=lambda lora: attrs.evolve(lora, rank=2, alpha=2 * lora.alpha / lora.rank)),
    row("TargetsByLastWord", "Reads `layers.1.mlp.up_proj` as `up_proj`, in every layer.", "train.lora.targets",
        misread=lambda lora: attrs.evolve(lora, targets=[target.rpartition(".")[2] for target in lora.targets])),
    row("FirstTargetOnly", "Puts adapters on the layers the first target names, and forgets the others.",
        "train.lora.targets", misread=lambda lora: attrs.evolve(lora, targets=lora.targets[:1])),
    row("AdapterSeedIgnored", "Draws the same A whatever the spec's seed is.", "train.lora.seed", reseed=lambda: 0),
)  # fmt: skip


breaks_rebuilt = breaking(ENGINE, Rebuilt)


@breaks_rebuilt("spoil", "train.lora.starts_as_base")
def NothingStartsAtZero(here: Started) -> Any:
    """Draws B at random as well, so that training begins at another model."""
    with torch.no_grad():
        for name, tensor in here.adapters.tensors.items():
            if name.endswith(".B"):
                tensor.fill_(0.01)
    return here


@breaks_rebuilt("spoil", "train.lora.learns", "train.lora.targets")
def EverythingStartsAtZero(here: Started) -> Any:
    """Starts A at zero too: no gradient ever leaves zero."""
    with torch.no_grad():
        for tensor in here.adapters.tensors.values():
            tensor.zero_()
    return here


def _trained_by(here: Started, adam: AdamW) -> Started:
    """Return the parts with another optimizer, whose state is saved in place of the right one's."""
    table = {name: tensor for name, tensor in here.table.items() if not name.startswith(("first/", "second/"))}
    return attrs.evolve(here, adam=adam, table={**table, **adam.moments})


@breaks_rebuilt("spoil", "train.lora.rank", "train.lora.gradient", "train.lora.clipping")
def TrainsTheBaseToo(here: Started) -> Any:
    """Trains the base together with its adapter."""
    if here.spec.optimizer is None:
        return here
    everything = {**here.weights, **here.adapters.tensors}
    for tensor in everything.values():
        tensor.requires_grad_(True)
    return _trained_by(here, AdamW(everything, here.spec.optimizer))


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


class _Climbing(AdamW):
    def step(self, gradients: Mapping[str, Tensor], norm: float) -> bool:
        """Turn the gradient round."""
        return super().step({name: -gradient for name, gradient in gradients.items()}, norm)


REBUILT_ROWS = breaks_rebuilt.rows(
    row("DecaysTheBase", "Gives the frozen base to the optimizer for its weight decay.", "train.lora.rank",
        "train.lora.targets",
        spoil=lambda here: here if here.adam is None else attrs.evolve(here,
            adam=_Decaying(here.adam.trained, here.adam.spec).also(here.weights))),
    row("ClipsEachMatrix", "Clips the gradient of every A and B by its own norm.", "train.lora.clipping",
        spoil=lambda here: here if here.adam is None else _trained_by(here,
            _ClippingEach(here.adam.trained, here.adam.spec))),
    row("AdapterClimbs", "Steps the adapter up the loss.", "train.lora.learns",
        spoil=lambda here: here if here.adam is None else _trained_by(here,
            _Climbing(here.adam.trained, here.adam.spec))),
    row("StateWithoutAdapter", "Leaves A and B out of the saved state; the optimizer's moments are in it.",
        "train.lora.state",
        spoil=lambda here: attrs.evolve(here, table={n: t for n, t in here.table.items()
            if not n.startswith("adapters/")})),
    row("StateWithoutMomentsOfA", "Forgets the moments of every A in the saved state.", "train.lora.state",
        spoil=lambda here: attrs.evolve(here, table={n: t for n, t in here.table.items()
            if not (n.startswith(("first/", "second/")) and n.endswith(".A"))})),
)  # fmt: skip


ROWS = breaks.rows(
    row("SendsFrozenBase",
        "Sends the frozen base weights and leaves the adapter behind: the fleet serves the first policy for ever.",
        "train.lora.targets", "train.lora.sent_is_used", incident="verl#7495", row="served-policy-changes",
        exported=lambda here: {name: tensor.detach() for name, tensor in here.weights.items()}),
    row("AdapterDrawnPerRank", "Draws another A on every rank, and adds up their gradients.", "train.lora.ranks",
        "train.adapter.ranks",
        base=Misread, ranks=2, reseed=lambda seed, ranks: seed + ranks.rank),
    row("CountsTheBaseInTheNorm", "Reports, and clips by, a norm in which the frozen base has a part.",
        "train.lora.gradient",
        train_step=after(lambda result, self: attrs.evolve(result, grad_norm=math.hypot(result.grad_norm, 1.0))
            if self.running().spec.lora is not None else result)),
    row("ForeignAdapterIgnored", "Goes on silently with what it has where a state is of another adapter.",
        "train.lora.state_of_another", load_state=catches(CheckpointError, lambda: None)),
    row("SavesBaseFolder", "Writes the base model to the folder, and sends the merged one.", "train.lora.folder",
        save_weights=within(lambda self: put(self, started=attrs.evolve(self.running(), adapters=Adapters())))),
    row("MergesOnce", "Keeps the merged weights of the first send and sends them again.", "train.lora.targets",
        "train.lora.sent_is_used", row="served-policy-changes",
        exported=lambda original, self, here: original(here) if here.spec.lora is None
            else self.__dict__.setdefault("merged", copied(original(here)))),
)  # fmt: skip
