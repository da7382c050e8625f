"""Trainers that send something else than their adapter, or begin with another one than they were given.

Knows: the second trainer.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

from areal_core.contract.errors import ModelError
from areal_core.contract.train import LoraSpec, RankContext, TrainSpec
from areal_proof.mutants.rows import Original, breaking, given, put, row, then, within
from areal_proof.mutants.train_optional import Misread, Rebuilt
from areal_proof.mutants.train_precision import keep
from areal_proof.second.train.adapters import Adapters
from areal_proof.second.train.engine import SecondTrainEngine, Started

ENGINE = "train/second"
breaks = breaking(ENGINE, SecondTrainEngine)
breaks_rebuilt = breaking(ENGINE, Rebuilt)
breaks_misread = breaking(ENGINE, Misread)


@breaks("start", "train.adapter.begins")
def UnfitBeginsAnew(original: Original, spec: TrainSpec, rank: RankContext) -> Any:
    """Begins a new adapter where the folder to begin with does not fit."""
    try:
        return original()
    except ModelError:
        assert spec.lora is not None
        return original(attrs.evolve(spec, lora=attrs.evolve(spec.lora, path="")), rank)


@breaks_rebuilt("spoil", "train.adapter.sent")
def DrawsMostlyAboveZero(here: Started) -> Any:
    """Draws every A from twice as far above zero as below it."""
    with torch.no_grad():
        for name, tensor in here.adapters.tensors.items():
            if name.endswith(".A"):
                tensor.mul_(1.5).add_(0.5 * tensor.shape[1] ** -0.5)
    return here


@breaks_rebuilt("spoil", "train.adapter.sent")
def DrawsEveryLayerAlike(here: Started) -> Any:
    """Begins the draws of every layer at the seed, so that all begin with the same numbers."""
    with torch.no_grad():
        for name, tensor in here.adapters.tensors.items():
            if name.endswith(".A"):
                drawn = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(here.spec.seed))
                tensor.copy_((drawn * 2 - 1) * tensor.shape[1] ** -0.5)
    return here


@breaks_rebuilt("spoil", "train.adapter.begins")
def ReadsAAndForgetsB(here: Started) -> Any:
    """Reads every A of the folder to begin with and leaves every B at zero."""
    with torch.no_grad():
        for name, tensor in here.adapters.tensors.items():
            if name.endswith(".B"):
                tensor.zero_()
    return here


def _anew(lora: LoraSpec) -> LoraSpec:
    return attrs.evolve(lora, path="")


ROWS = breaks.rows(
    row("SendsMergedAllTheSame", "Sends whole merged weights to a fleet that waits for the adapter.",
        "train.adapter.sent", incident="verl#7495", row="one-destination",
        adapter_alone=lambda self, here: self.exported(here)),
    row("SendsTheFirstAdapter", "Sends the adapter as it was at the first update, again and again.",
        "train.adapter.is_used", incident="verl#7495", row="served-policy-changes",
        adapter_alone=lambda original, self, here: self.__dict__.setdefault("first_sent",
            {name: tensor.clone() for name, tensor in original(here).items()})),
    row("SendsScaledB", "Multiplies B by alpha / rank before it sends it, as for a merge: the scale counts twice.",
        "train.adapter.is_used",
        adapter_alone=lambda original, here: {name: tensor * (here.adapters.scale if "lora_B" in name else 1.0)
            for name, tensor in original().items()}),
    row("LeavesTheLastLayerOut", "Sends every A and B but those of the last layer.", "train.adapter.sent",
        incident="UniRL#166", row="one-destination",
        adapter_alone=lambda original: dict(list(original().items())[:-2])),
    row("SendsBTurnedAround", "Sends B as [rank, out].", "train.adapter.sent",
        adapter_alone=lambda original: {name: tensor.T.contiguous() if "lora_B" in name else tensor
            for name, tensor in original().items()}),
    row("SendsModuleNames", "Sends A and B under its own names for them.", "train.adapter.sent",
        incident="UniRL#166", row="one-destination",
        adapter_alone=lambda original: {name.removeprefix("base_model.model."): tensor
            for name, tensor in original().items()}),
    row("SendsTheAOfTheNextLayer", "Sends every A under the name of the next one of its shape.",
        "train.adapter.is_used", row="one-destination", adapter_alone=lambda original: _turned(original())),
    row("SavesTheBaseBeside", "Writes the base model to the folder, since it sends the adapter alone.",
        "train.adapter.is_used",
        save_weights=within(lambda self: put(self, started=attrs.evolve(self.running(), adapters=Adapters())))),
)  # fmt: skip
HALF_ROWS = breaks.rows(
    row("AdapterInHalf", "Keeps A and B in bfloat16: what a step adds or takes is rounded away.",
        "train.precision.adapter",
        train_step=then(lambda self: keep(self.running().adapters.tensors, torch.bfloat16))),
    row("AdapterDoesNotDecay", "Trains an adapter without the weight decay it was given.", "train.precision.adapter",
        start=given(optimizer=lambda spec: spec.optimizer and attrs.evolve(spec.optimizer,
            weight_decay=0.0 if spec.lora is not None else spec.optimizer.weight_decay))),
    row("FrozenWithoutAdapter", "Scores with the base model where a frozen role is given an adapter.",
        "train.adapter.begins", start=given(lora=lambda spec: spec.lora if spec.optimizer is not None else None)),
)  # fmt: skip
MISREAD_ROWS = breaks_misread.rows(
    row("BeginsAnewWhateverIsThere", "Draws a new adapter where the spec names a folder to begin with.",
        "train.adapter.begins", misread=_anew),
    row("BeginsWithAWholeAlpha", "Rounds the alpha of an adapter that begins as a folder to a whole number.",
        "train.adapter.begins",
        misread=lambda lora: attrs.evolve(lora, alpha=float(round(lora.alpha))) if lora.path else lora),
)  # fmt: skip


def _turned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with those of every kind of A moved on by one."""
    found = dict(tensors)
    for shape in {tensor.shape for name, tensor in tensors.items() if "lora_A" in name}:
        names = [name for name, tensor in tensors.items() if "lora_A" in name and tensor.shape == shape]
        found |= {name: tensors[other] for name, other in zip(names, [*names[1:], *names[:1]], strict=True)}
    return found
