"""Trainers that are right while things are few or small, and wrong beyond a size.

Knows: what each does beyond it.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Output, RankContext, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, row
from areal_proof.mutants.train_optimizer import OtherOptimizer, OtherSpec
from areal_proof.mutants.train_parts import Columns, replace_model
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


@breaks("forward", "train.forward.many_sequences", row="logprob-gap")
def SortsManyForgetsOrder(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Sorts more than 24 sequences by length to pack them, and puts those of one length back in reverse."""
    result = original()
    lengths, starts = batch.lengths.tolist(), batch.cu_seqlens.tolist()
    if len(lengths) <= 24:
        return result
    rows: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        rows.setdefault(length, []).append(number)
    order = list(range(len(lengths)))
    for alike in rows.values():
        for number, other in zip(alike, reversed(alike), strict=True):
            order[number] = other
    index = torch.cat([torch.arange(starts[at], starts[at] + lengths[at]) for at in order])
    return result.with_tokens(**{str(name): result.tokens[name][index] for name in outputs})


@breaks("step", "train.step.adamw_long", base=OtherOptimizer, part=("kind", Optimizer))
def StepCountSaturates(original: Original, self: Optimizer) -> Any:
    """Counts the steps of the bias correction up to 20, and no further."""
    stepped = original()
    for state in self._adam.state.values():
        state["step"].clamp_(max=20.0)
    return stepped


ROWS = breaks.rows(
    row("TableCutAt64", "Trains on the first 64 sequences of a shard, and drops the rest.",
        "train.step.many_sequences",
        train_step=lambda original, batch, objective: original(batch.select(list(range(min(64, batch.num_sequences)))),
            objective)),
    row("ClipsAtTenUnasked", "Takes `max_grad_norm` 0 for its own default of 10.", "train.step.large_norm",
        base=OtherSpec, other=lambda spec: attrs.evolve(spec, max_grad_norm=spec.max_grad_norm or 10.0)),
)  # fmt: skip


@breaks("step", "train.step.large_norm", base=OtherOptimizer, part=("kind", Optimizer))
@torch.no_grad()
def LargeGradientsClamped(original: Original, self: Any) -> Any:
    """Clamps every number of a gradient to 20, untold."""
    for gradient in self._gradients(self._held):
        gradient.clamp_(-20.0, 20.0)
    return original()


@mutant(ENGINE, killers=("train.bfloat16.accumulates",))
class SumsInHalf(ReferenceTrainEngine):
    """Adds up the gradients of micro-batches in bfloat16 in a bfloat16 run."""

    class _Model(Columns):
        def backward(self, loss: Tensor, *, last: bool) -> None:
            super().backward(loss, last=last)
            for tensor in self.inner.packed.hf.parameters():
                if tensor.grad is not None:
                    tensor.grad.copy_(tensor.grad.bfloat16())

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        if spec.dtype == "bfloat16":
            replace_model(self, self._Model)
        return info
