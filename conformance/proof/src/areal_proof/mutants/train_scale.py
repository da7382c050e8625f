"""Trainers that are right while things are few or small, and wrong beyond a size.

Knows: what each does beyond it.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Objective, OptimizerSpec, Output, RankContext, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.train_optimizer import OtherOptimizer, OtherSpec
from areal_proof.mutants.train_parts import Columns, replace_model
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer

ENGINE = "train/reference"


@mutant(ENGINE, killers=("train.forward.many_sequences",), row="logprob-gap")
class SortsManyForgetsOrder(ReferenceTrainEngine):
    """Sorts more than 24 sequences by length to pack them, and puts those of one length back in reverse."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        lengths, starts = batch.lengths.tolist(), batch.cu_seqlens.tolist()
        if len(lengths) <= 24:
            return result
        rows: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            rows.setdefault(length, []).append(row)
        order = list(range(len(lengths)))
        for alike in rows.values():
            for row, other in zip(alike, reversed(alike), strict=True):
                order[row] = other
        index = torch.cat([torch.arange(starts[row], starts[row] + lengths[row]) for row in order])
        return result.with_tokens(**{str(name): result.tokens[name][index] for name in outputs})


@mutant(ENGINE, killers=("train.step.many_sequences",))
class TableCutAt64(ReferenceTrainEngine):
    """Trains on the first 64 sequences of a shard, and drops the rest."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return super().train_step(batch.select(list(range(min(64, batch.num_sequences)))), objective)


@mutant(ENGINE, killers=("train.step.adamw_long",))
class StepCountSaturates(OtherOptimizer):
    """Counts the steps of the bias correction up to 20, and no further."""

    class kind(Optimizer):
        """Up to 20."""

        def step(self, norm: float) -> bool:
            """Step, then hold the count."""
            stepped = super().step(norm)
            for state in self._adam.state.values():
                state["step"].clamp_(max=20.0)
            return stepped


@mutant(ENGINE, killers=("train.step.large_norm",))
class ClipsAtTenUnasked(OtherSpec):
    """Takes `max_grad_norm` 0 for its own default of 10."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        return attrs.evolve(spec, max_grad_norm=spec.max_grad_norm or 10.0)


@mutant(ENGINE, killers=("train.step.large_norm",))
class LargeGradientsClamped(OtherOptimizer):
    """Clamps every number of a gradient to 20, untold."""

    class kind(Optimizer):
        """To 20."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Clamp, then step."""
            for gradient in self._gradients(self._held):
                gradient.clamp_(-20.0, 20.0)
            return super().step(norm)


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
