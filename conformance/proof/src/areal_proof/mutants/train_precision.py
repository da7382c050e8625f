"""Trainers that are wrong in bfloat16, with activations computed twice, or as critics only.

Knows: what each computes instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Head, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, row
from areal_proof.mutants.train_parts import Columns, hugging_face, parameters, replace_model
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


@breaks("start", "train.bfloat16.forward")
def HalfIsSingle(original: Original, self: ReferenceTrainEngine, spec: TrainSpec, rank: RankContext) -> Any:
    """Computes in float32 where bfloat16 was asked for."""
    dtype, single = spec.dtype, attrs.evolve(spec, dtype="float32")
    info = original(single, rank)
    assert self._trainer is not None
    self._trainer.exporter._dtype = dtype
    return info


ROWS = breaks.rows(
    row("ColumnsInHalf", "Returns columns in the dtype it computes in.", "train.bfloat16.forward",
        start=before(lambda self, spec: setattr(self, "_half", spec.dtype == "bfloat16")),
        forward=after(lambda result, self, outputs: result.with_tokens(**{str(n): result.tokens[n].bfloat16()
            for n in outputs}) if self._half else result)),
)  # fmt: skip


@mutant(ENGINE, killers=("train.bfloat16.steps",))
class HalfGradientScaled(ReferenceTrainEngine):
    """Scales the loss for half precision, and forgets to scale the gradient back."""

    class _Model(Columns):
        def backward(self, loss: Tensor, *, last: bool) -> None:
            super().backward(loss * 8.0, last=last)

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        if spec.dtype == "bfloat16":
            replace_model(self, self._Model)
        return info


@mutant(ENGINE, killers=("train.bfloat16.tiny_steps",))
class MasterInHalf(ReferenceTrainEngine):
    """Holds its master weights in bfloat16 in a bfloat16 run."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._half = spec.dtype == "bfloat16"
        return super().start(spec, rank)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        if self._half:
            with torch.no_grad():
                for tensor in parameters(self).values():
                    tensor.copy_(tensor.bfloat16())
        return report


@breaks("start", "train.checkpointing.same")
def RecomputedLayerDropped(original: Original, self: ReferenceTrainEngine) -> Any:
    """Loses the gradient of the first layer when activations are computed twice."""
    info = original()
    if self._config.activation_checkpointing:
        for parameter in hugging_face(self).model.layers[0].parameters():
            parameter.register_hook(lambda gradient: gradient * 0.0)
    return info


@mutant(ENGINE, killers=("train.value.forward", "train.value.step"))
class ValuesAfterToken(ReferenceTrainEngine):
    """Reads the value of a token after the token."""

    class _Model(Columns):
        def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
            if outputs != {Output.VALUES}:
                return super().columns(batch, outputs)
            lengths = batch.lengths + 1  # one token more, so that the value after the last one is there
            ends = lengths.cumsum(0)
            own = torch.ones(int(ends[-1]), dtype=torch.bool, device=batch.device)
            own[ends - 1] = False
            columns = {}
            for name in ("input_ids", "loss_mask"):
                longer = torch.zeros(len(own), dtype=batch.tokens[name].dtype, device=batch.device)
                longer[own] = batch.tokens[name]
                columns[name] = longer
            values = super().columns(Batch.of(columns, {}, lengths), outputs)[Output.VALUES]
            return {Output.VALUES: values.roll(-1)[own]}

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        replace_model(self, self._Model)
        return info


@breaks("start", "train.value.step", "train.value.forward")
def CriticHeadFrozen(original: Original, self: ReferenceTrainEngine, spec: TrainSpec) -> Any:
    """Trains a critic's backbone and leaves its head."""
    info = original()
    if spec.head is Head.VALUE:
        for name, tensor in parameters(self).items():
            if name.startswith("score."):
                tensor.register_hook(lambda gradient: gradient * 0.0)  # type: ignore[no-untyped-call]
    return info
