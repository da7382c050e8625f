"""Trainers whose optimizer, clipping or schedule is not the one asked for.

Knows: what each computes instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs
import torch

from areal_core.contract.train import EngineInfo, OptimizerSpec, RankContext, TrainSpec
from areal_proof.mutants.rows import Original, before, breaking, gives, put, row, then, within
from areal_proof.mutants.train_parts import copied, parameters, replace_optimizer
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer

ENGINE = "train/reference"
breaks_reference = breaking(ENGINE, ReferenceTrainEngine)


class OtherOptimizer(ReferenceTrainEngine):
    """The reference trainer with another optimizer. No defect by itself."""

    kind: ClassVar[type[Optimizer]] = Optimizer

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then take the other optimizer."""
        info = super().start(spec, rank)
        replace_optimizer(self, self.kind, spec.optimizer)
        return info


class OtherSpec(ReferenceTrainEngine):
    """The reference trainer with another optimizer spec. No defect by itself."""

    def other(self, spec: OptimizerSpec) -> OptimizerSpec:
        """Return the spec used."""
        return spec

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start with the other spec."""
        return super().start(attrs.evolve(spec, optimizer=spec.optimizer and self.other(spec.optimizer)), rank)


breaks_other_optimizer = breaking(ENGINE, OtherOptimizer, part=("kind", Optimizer))


@breaks_other_optimizer("step", "train.step.adamw", "train.step.adamw_betas")
@torch.no_grad()
def DecayAsPenalty(original: Original, self: Optimizer, norm: float) -> Any:
    """Adds the weight decay to the gradient, as Adam with an L2 penalty does."""
    for group in self.adam.param_groups:
        group["weight_decay"] = 0.0
    if math.isfinite(norm):
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.add_(parameter, alpha=self.spec.weight_decay)
    return original()


@breaks_other_optimizer("step", "train.step.adamw", "train.step.adamw_usual")
@torch.no_grad()
def NoDecayOnVectors(original: Original, self: Optimizer) -> Any:
    """Leaves norms and biases out of the weight decay, as some recipes do."""
    rate = self.lr
    stepped = original()
    for parameter in self.parameters.values():
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
        for name, parameter in self.parameters.items():
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


@breaks_other_optimizer("step", "train.step.clipping")
@torch.no_grad()
def ClipsEachTensor(original: Original, self: Optimizer, norm: float) -> Any:
    """Clips every tensor by its own norm."""
    limit = self.spec.max_grad_norm
    if limit and math.isfinite(norm):
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(min(1.0, limit / (float(parameter.grad.norm()) + 1e-12)))
    with put(self, spec=attrs.evolve(self.spec, max_grad_norm=0.0)):
        return original()


@breaks_other_optimizer("step", "train.step.not_clipped")
@torch.no_grad()
def ScalesUpToLimit(original: Original, self: Any, norm: float) -> Any:
    """Gives every gradient the norm `max_grad_norm`, shorter ones too."""
    limit = self.spec.max_grad_norm
    if limit > norm > 0.0:
        for gradient in self.gradients(self.held):
            gradient.mul_(limit / norm)
    return original()


@breaks_other_optimizer("step", "train.step.extremes")
@torch.no_grad()
def ClipsByItsOwnNorm(original: Original, self: Any, norm: float) -> Any:
    """Clips by a norm that it computes again as torch does, from squares in float32; the report tells the right one."""
    gradients = self.gradients(self.held)
    if self.spec.max_grad_norm and math.isfinite(norm):
        own = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, torch.clamp(self.spec.max_grad_norm / (own + 1e-6), max=1.0))
    with put(self, spec=attrs.evolve(self.spec, max_grad_norm=0.0)):
        return original()


class OtherRate(Optimizer):
    """An optimizer with another learning rate. No defect by itself."""

    def rate(self) -> float:
        """Return the rate used."""
        return super().lr

    @property
    def lr(self) -> float:
        """Return the other rate."""
        return self.rate()


OPTIMIZER_ROWS = breaks_other_optimizer.rows(
    row("SquaresInFloat", "Takes the norm of a gradient whose squares are no float32 for infinite, or for zero.",
        "train.step.extremes",
        squared_norm=lambda self: float(torch.nn.utils.get_total_norm(self.gradients(self.held)).square())),
    row("ScheduleCountsCalls", "Counts the schedule by calls of `train_step`, skipped ones too.",
        "train.step.schedule", "train.state.skipped_step",
        step=then(lambda self, result: setattr(self, "steps", self.steps + (not result or self.steps == 2)))),
    row("RateToldNotUsed", "Reports the rate of the schedule, and steps with the full one.", "train.step.schedule",
        step=within(lambda self: put(self, spec=attrs.evolve(self.spec, schedule="constant", warmup_steps=0)))),
    row("RateNeverZero", "Steps with a rate of at least 1e-7.", "train.step.zero_rate", incident="open-instruct#1473",
        row="no-drift", step=within(lambda self: put(self, spec=attrs.evolve(self.spec, lr=max(self.spec.lr, 1e-7))))),
)  # fmt: skip


REFERENCE_ROWS = breaks_reference.rows(
    row("NoBiasCorrection", "Divides neither moment by its bias.", "train.step.adamw", "train.step.adamw_usual",
        base=OtherOptimizer, part=("kind", _OwnAdam), corrected=False),
    row("EpsInsideRoot", "Adds eps under the root.", "train.step.adamw", "train.step.adamw_betas", base=OtherOptimizer,
        part=("kind", _OwnAdam), inside=True),
    row("MomentsStartAgain", "Begins its moments again every ten steps.", "train.step.adamw_many", base=OtherOptimizer,
        part=("kind", _OwnAdam), restart_after=10),
    row("ReportsClippedNorm", "Reports the norm after clipping.", "train.step.clipping",
        start=before(lambda self, spec: setattr(self, "_limit", spec.optimizer.max_grad_norm if spec.optimizer
            else 0.0)),
        train_step=gives(grad_norm=lambda result, self: min(result.grad_norm, self._limit or math.inf))),
    row("WarmupFromZero", "Begins the warm-up with a step of rate 0.", "train.step.schedule", base=OtherOptimizer,
        part=("kind", OtherRate),
        rate=lambda original, self: self.spec.lr * self.steps / self.spec.warmup_steps
            if self.steps < self.spec.warmup_steps else original()),
)  # fmt: skip


breaks = breaking(ENGINE, OtherSpec)
ROWS = breaks.rows(
    row("BetasIgnored", "Uses the usual betas whatever the spec says.", "train.step.adamw", "train.step.adamw_betas",
        other=lambda spec: attrs.evolve(spec, betas=(0.9, 0.999))),
    row("EpsIgnored", "Uses the usual eps whatever the spec says.", "train.step.adamw", "train.step.adamw_betas",
        other=lambda spec: attrs.evolve(spec, eps=1e-8)),
    row("NeverClips", "Leaves the gradient as it is, whatever its norm.", "train.step.clipping",
        "train.step.adamw_usual", other=lambda spec: attrs.evolve(spec, max_grad_norm=0.0)),
    row("ZeroClipsAll", "Takes `max_grad_norm` 0 for a norm to clip to.", "train.step.not_clipped", "train.step.adamw",
        "train.step.gradient", other=lambda spec: attrs.evolve(spec, max_grad_norm=spec.max_grad_norm or 1e-9)),
    row("FloorIgnored", "Lets the rate fall to 0, whatever `min_lr_ratio` says.", "train.step.schedule",
        other=lambda spec: attrs.evolve(spec, min_lr_ratio=0.0)),
    row("CosineIsLinear", "Falls in a line where a cosine was asked for.", "train.step.schedule",
        other=lambda spec: attrs.evolve(spec, schedule="linear" if spec.schedule == "cosine" else spec.schedule)),
    row("OddScheduleIsConstant", "Takes a schedule it cannot follow for a constant one.",
        "train.step.schedule_refused",
        other=lambda spec: spec if spec.schedule in ("linear", "cosine") and spec.total_steps > spec.warmup_steps
            else attrs.evolve(spec, schedule="constant")),
)  # fmt: skip


@breaks_reference("train_step", "train.step.everywhere", "train.step.gradient", "train.send.current",
    row="one-destination", start=then(lambda self: setattr(self, "kept", copied({name: tensor for name,
        tensor in parameters(self).items() if name.endswith("norm.weight")}))))  # fmt: skip
def NormsFrozen(original: Original, self: Any) -> Any:
    """Trains matrices only: norms stay what they were."""
    report = original()
    with torch.no_grad():
        for name, tensor in self.kept.items():
            parameters(self)[name].copy_(tensor)
    return report


@breaks_reference("train_step", "train.step.adamw", "train.step.adamw_many", _count=0)
def SecondStepTwice(original: Original, self: Any) -> Any:
    """Makes every second step twice."""
    self._count += 1
    if self._count % 2 == 0:
        original()
    return original()
