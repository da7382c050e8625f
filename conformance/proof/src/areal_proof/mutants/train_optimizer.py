"""Trainers whose optimizer, clipping or schedule is not the one asked for.

Knows: what each computes instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Objective, OptimizerSpec, RankContext, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.train_parts import parameters, replace_optimizer
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer

ENGINE = "train/reference"


class OtherOptimizer(ReferenceTrainEngine):
    """The reference trainer with another optimizer. Not a sin by itself."""

    kind: ClassVar[type[Optimizer]] = Optimizer

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then take the other optimizer."""
        info = super().start(spec, rank)
        replace_optimizer(self, self.kind, spec.optimizer)
        return info


class OtherSpec(ReferenceTrainEngine):
    """The reference trainer with another optimizer spec. Not a sin by itself."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        """Return the spec used."""
        return spec

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start with the other spec."""
        return super().start(attrs.evolve(spec, optimizer=spec.optimizer and self.other(spec.optimizer)), rank)


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_betas"))
class DecayAsPenalty(OtherOptimizer):
    """Adds the weight decay to the gradient, as Adam with an L2 penalty does."""

    class kind(Optimizer):
        """Adds the penalty before the step."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Step with the penalty in the gradient and no decay beside it."""
            for group in self._adam.param_groups:
                group["weight_decay"] = 0.0
            if math.isfinite(norm):
                for parameter in self._parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.add_(parameter, alpha=self.spec.weight_decay)
            return super().step(norm)


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_usual"))
class NoDecayOnVectors(OtherOptimizer):
    """Leaves norms and biases out of the weight decay, as some recipes do."""

    class kind(Optimizer):
        """Undoes the decay."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Step, then undo the decay of vectors."""
            rate = self.lr
            stepped = super().step(norm)
            for parameter in self._parameters.values():
                if stepped and parameter.ndim == 1:
                    parameter.add_(parameter, alpha=rate * self.spec.weight_decay)
            return stepped


class _OwnAdam(Optimizer):
    """AdamW by hand, so that one term can be wrong."""

    corrected: ClassVar[bool] = True
    inside: ClassVar[bool] = False
    restart_after: ClassVar[int] = 1 << 30

    @torch.no_grad()
    def step(self, norm: float) -> bool:
        """Make one step of the other formula."""
        if not math.isfinite(norm):
            self.drop_gradients()
            return False
        beta1, beta2 = self.spec.betas
        done = self.steps % self.restart_after + 1
        for name, parameter in self._parameters.items():
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            if 0.0 < self.spec.max_grad_norm < norm:
                gradient = gradient * (self.spec.max_grad_norm / norm)
            first, second = self.moments["exp_avg"][name], self.moments["exp_avg_sq"][name]
            if done == 1:
                first.zero_(), second.zero_()
            first.lerp_(gradient, 1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            one, two = (1.0 - beta1**done, 1.0 - beta2**done) if self.corrected else (1.0, 1.0)
            size = (second / two + self.spec.eps).sqrt() if self.inside else (second / two).sqrt() + self.spec.eps
            parameter.mul_(1.0 - self.lr * self.spec.weight_decay)
            parameter.sub_(self.lr * (first / one) / size)
        self.steps += 1
        self.drop_gradients()
        return True


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_usual"))
class NoBiasCorrection(OtherOptimizer):
    """Divides neither moment by its bias."""

    class kind(_OwnAdam):
        """Without correction."""

        corrected = False


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_betas"))
class EpsInsideRoot(OtherOptimizer):
    """Adds eps under the root."""

    class kind(_OwnAdam):
        """Under the root."""

        inside = True


@mutant(ENGINE, killers=("train.step.adamw_many",))
class MomentsStartAgain(OtherOptimizer):
    """Begins its moments again every ten steps."""

    class kind(_OwnAdam):
        """Every ten steps."""

        restart_after = 10


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_betas"))
class BetasIgnored(OtherSpec):
    """Uses the usual betas whatever the spec says."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        usual: Any = (0.9, 0.999)
        return attrs.evolve(spec, betas=usual)


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_betas"))
class EpsIgnored(OtherSpec):
    """Uses the usual eps whatever the spec says."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        return attrs.evolve(spec, eps=1e-8)


@mutant(ENGINE, killers=("train.step.clipping",))
class ClipsEachTensor(OtherOptimizer):
    """Clips every tensor by its own norm."""

    class kind(Optimizer):
        """By its own norm."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Clip tensor by tensor, then step without clipping."""
            limit = self.spec.max_grad_norm
            if limit and math.isfinite(norm):
                for parameter in self._parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.mul_(min(1.0, limit / (float(parameter.grad.norm()) + 1e-12)))
            spec, self.spec = self.spec, attrs.evolve(self.spec, max_grad_norm=0.0)
            try:
                return super().step(norm)
            finally:
                self.spec = spec


@mutant(ENGINE, killers=("train.step.clipping",))
class ReportsClippedNorm(ReferenceTrainEngine):
    """Reports the norm after clipping."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._limit = spec.optimizer.max_grad_norm if spec.optimizer else 0.0
        return super().start(spec, rank)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        return attrs.evolve(report, grad_norm=min(report.grad_norm, self._limit or math.inf))


@mutant(ENGINE, killers=("train.step.clipping", "train.step.adamw_usual"))
class NeverClips(OtherSpec):
    """Leaves the gradient as it is, whatever its norm."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        return attrs.evolve(spec, max_grad_norm=0.0)


@mutant(ENGINE, killers=("train.step.not_clipped",))
class ScalesUpToLimit(OtherOptimizer):
    """Gives every gradient the norm `max_grad_norm`, shorter ones too."""

    class kind(Optimizer):
        """Also upwards."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Scale, then step."""
            limit = self.spec.max_grad_norm
            if limit > norm > 0.0:
                for gradient in self._gradients(self._held):
                    gradient.mul_(limit / norm)
            return super().step(norm)


@mutant(ENGINE, killers=("train.step.not_clipped", "train.step.adamw", "train.step.gradient"))
class ZeroClipsAll(OtherSpec):
    """Takes `max_grad_norm` 0 for a norm to clip to."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        return attrs.evolve(spec, max_grad_norm=spec.max_grad_norm or 1e-9)


class OtherRate(Optimizer):
    """An optimizer with another learning rate. Not a sin by itself."""

    def rate(self) -> float:
        """Return the rate used."""
        return super().lr

    @property
    def lr(self) -> float:
        """Return the other rate."""
        return self.rate()


@mutant(ENGINE, killers=("train.step.schedule", "train.state.skipped_step"))
class ScheduleCountsCalls(OtherOptimizer):
    """Counts the schedule by calls of `train_step`, skipped ones too."""

    class kind(Optimizer):
        """By calls, and one too many."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Step; a skipped step counts."""
            stepped = super().step(norm)
            if not stepped or self.steps == 2:
                self.steps += 1
            return stepped


@mutant(ENGINE, killers=("train.step.schedule",))
class WarmupFromZero(OtherOptimizer):
    """Begins the warm-up with a step of rate 0."""

    class kind(OtherRate):
        """From zero."""

        def rate(self) -> float:
            """Return the rate of the step before, 0 for the first."""
            if self.steps < self.spec.warmup_steps:
                return self.spec.lr * self.steps / self.spec.warmup_steps
            return super().rate()


@mutant(ENGINE, killers=("train.step.schedule",))
class FloorIgnored(OtherSpec):
    """Lets the rate fall to 0, whatever `min_lr_ratio` says."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        return attrs.evolve(spec, min_lr_ratio=0.0)


@mutant(ENGINE, killers=("train.step.schedule",))
class CosineIsLinear(OtherSpec):
    """Falls in a line where a cosine was asked for."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        return attrs.evolve(spec, schedule="linear" if spec.schedule == "cosine" else spec.schedule)


@mutant(ENGINE, killers=("train.step.schedule",))
class RateToldNotUsed(OtherOptimizer):
    """Reports the rate of the schedule, and steps with the full one."""

    class kind(Optimizer):
        """With the full rate."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Step with the full rate."""
            spec, self.spec = self.spec, attrs.evolve(self.spec, schedule="constant", warmup_steps=0)
            try:
                return super().step(norm)
            finally:
                self.spec = spec


@mutant(ENGINE, killers=("train.step.zero_rate",), incident="open-instruct#1473", row="no-drift")
class RateNeverZero(OtherOptimizer):
    """Steps with a rate of at least 1e-7."""

    class kind(Optimizer):
        """At least 1e-7, untold."""

        @torch.no_grad()
        def step(self, norm: float) -> bool:
            """Step with at least that rate."""
            spec, self.spec = self.spec, attrs.evolve(self.spec, lr=max(self.spec.lr, 1e-7))
            try:
                return super().step(norm)
            finally:
                self.spec = spec


@mutant(ENGINE, killers=("train.step.schedule_refused",))
class OddScheduleIsConstant(OtherSpec):
    """Takes a schedule it cannot follow for a constant one."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        known = spec.schedule in ("linear", "cosine") and spec.total_steps > spec.warmup_steps
        return spec if known else attrs.evolve(spec, schedule="constant")


@mutant(ENGINE, killers=("train.step.everywhere", "train.step.gradient", "train.send.current"), row="one-destination")
class NormsFrozen(ReferenceTrainEngine):
    """Trains matrices only: norms stay what they were."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        self._kept: Mapping[str, Tensor] = {
            name: tensor.detach().clone() for name, tensor in parameters(self).items() if name.endswith("norm.weight")
        }
        return info

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        with torch.no_grad():
            for name, tensor in self._kept.items():
                parameters(self)[name].copy_(tensor)
        return report


@mutant(ENGINE, killers=("train.step.adamw", "train.step.adamw_many"))
class SecondStepTwice(ReferenceTrainEngine):
    """Makes every second step twice."""

    _count = 0

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        self._count += 1
        if self._count % 2 == 0:
            super().train_step(batch, objective)
        return super().train_step(batch, objective)
