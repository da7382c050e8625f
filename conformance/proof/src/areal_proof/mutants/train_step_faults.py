"""Trainers that meet what cannot be trained, or a failing objective, in the wrong way.

Knows: what each does instead of skipping or refusing.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, Sum, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, breaking, row
from areal_proof.mutants.train_optimizer import OtherOptimizer
from areal_proof.mutants.train_parts import OtherObjective, Through
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer
from areal_torch.trainer import running

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
breaks_other_optimizer = breaking(ENGINE, OtherOptimizer, part=("kind", Optimizer))


@breaks_other_optimizer("step", "train.step.not_finite", "train.step.not_finite_twice")
@torch.no_grad()
def StepsOnNan(original: Original, self: Optimizer, norm: float) -> Any:
    """Puts 0 in the place of what is not finite, and steps."""
    if math.isfinite(norm):
        return original()
    for parameter in self._parameters.values():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
    return original(0.0)


@breaks_other_optimizer("step", "train.step.not_finite", "train.machine.checkpoint")
@torch.no_grad()
def SkippedStepCounts(original: Original, self: Optimizer) -> Any:
    """Moves the schedule on for a step it skipped."""
    stepped = original()
    self.steps += 0 if stepped else 1
    return stepped


@breaks_other_optimizer("step", "train.step.not_finite")
@torch.no_grad()
def SkippedStepDecays(original: Original, self: Optimizer) -> Any:
    """Lets the moments decay in a step it skips."""
    stepped = original()
    if not stepped:
        for moment in self.moments["exp_avg"].values():
            moment.mul_(self.spec.betas[0])
    return stepped


@breaks("train_step", "train.step.not_finite_twice", _skipped=False)
def SkippedTwiceTellsOnce(original: Original, self: Any) -> Any:
    """Says of a second step it skips in a row that it was made."""
    report = original()
    again, self._skipped = self._skipped and not report.stepped, not report.stepped
    return attrs.evolve(report, stepped=True) if again else report


@breaks_other_optimizer("step", "train.step.overflow")
@torch.no_grad()
def NormInHalf(original: Original, norm: float) -> Any:
    """Skips steps whose norm half precision could not hold."""
    return original(math.inf if norm > 1000.0 else norm)


@mutant(ENGINE, killers=("train.step.too_long",), incident="NeMo-RL#3599", row="trained-as-submitted")
class LongSequencesCut(ReferenceTrainEngine):
    """Cuts sequences that do not fit to the length that does."""

    def _fitting(self, batch: Batch) -> Batch:
        assert self._trainer is not None
        limit = min(self._trainer.limits.max_tokens, self._trainer.limits.context_length)
        keep = batch.positions < limit
        tokens = {str(name): column[keep] for name, column in batch.tokens.items()}
        return Batch.of(tokens, {str(n): c for n, c in batch.sequences.items()}, batch.lengths.clamp(max=limit))

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return super().train_step(self._fitting(batch), objective)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        return super().forward(self._fitting(batch), outputs)


@breaks("train_step", "train.step.missing_column")
def MissingColumnIsZero(original: Original, batch: Batch, objective: Objective) -> Any:
    """Takes a column that is missing for zeros."""
    there = {str(name) for name in batch.tokens.keys()}  # noqa: SIM118
    zeros = {name: torch.zeros(batch.num_tokens) for name in objective.columns - there}
    return original(batch.with_tokens(**zeros), objective)


@mutant(ENGINE, killers=("train.step.unknown_token",))
class UnknownTokensClamped(ReferenceTrainEngine):
    """Takes a token it does not know for the nearest one it does."""

    def _known(self, batch: Batch) -> Batch:
        assert self._trainer is not None
        return batch.with_tokens(input_ids=batch.tokens["input_ids"].clamp(0, self._trainer.limits.vocab_size - 1))

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        return super().train_step(self._known(batch), objective)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        return super().forward(self._known(batch), outputs)


ROWS = breaks.rows(
    row("SkippedNormHidden", "Reports a norm of 0 for a step it skipped.", "train.step.not_finite",
        train_step=after(lambda result: result if result.stepped else attrs.evolve(result, grad_norm=0.0))),
    row("NothingCountsAsOne",
        "Divides by 1 where nothing is trained, and steps: the weight decay is all that happens.",
        "train.step.nothing_trained", base=OtherObjective, part=("through", Through),
        normalizer=lambda self, batch: self.inner.normalizer(batch).clamp(min=1.0)),
)  # fmt: skip


@mutant(ENGINE, killers=("train.step.objective_raises",))
class HalfGradientKept(ReferenceTrainEngine):
    """Keeps the gradient of a step that failed half way."""

    class _Optimizer(Optimizer):
        keeps = False

        def drop_gradients(self) -> None:
            if not self.keeps:
                super().drop_gradients()

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            self.keeps = False
            return super().step(norm)

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        from areal_proof.mutants.train_parts import replace_optimizer

        info = super().start(spec, rank)
        replace_optimizer(self, self._Optimizer, spec.optimizer)
        return info

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        assert self._trainer is not None
        optimizer = self._trainer.optimizer
        if isinstance(optimizer, self._Optimizer):
            optimizer.keeps = True
        return super().train_step(batch, objective)


@breaks("train_step", "train.step.objective_raises", incident="NeMo-RL#3589", row="failed-is-typed")
def ObjectiveErrorsSwallowed(original: Original) -> Any:
    """Takes an objective that raises for a step on nothing."""
    try:
        return original()
    except ArealError:
        raise
    except Exception:
        return TrainReport(
            loss=0.0, grad_norm=0.0, lr=0.0, stepped=False, num_microbatches=0, num_tokens=0, seconds=0.0
        )


class _FiniteLosses(Through):
    """Remembers whether every loss was finite."""

    finite = True

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Look at the loss."""
        loss, metrics = super().loss(columns, batch, normalizer)
        self.finite = self.finite and bool(torch.isfinite(loss.detach()))
        return loss, metrics


@breaks("train_step", "train.step.not_finite_slope")
def LooksAtTheLoss(original: Original, self: ReferenceTrainEngine, batch: Batch, objective: Objective) -> Any:
    """Skips a step by its loss: an infinite gradient under a finite loss is cleaned and stepped."""
    watched, optimizer = _FiniteLosses(objective), running(self._trainer).optimizer
    assert optimizer is not None
    whole = optimizer.step

    def step(norm: float) -> bool:
        if watched.finite and not math.isfinite(norm):
            for parameter in optimizer._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            norm = 1.0
        return whole(norm)

    optimizer.step = step  # type: ignore[method-assign]
    try:
        return original(batch, watched)
    finally:
        del optimizer.step
