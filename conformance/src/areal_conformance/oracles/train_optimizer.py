"""AdamW, clipping and learning-rate schedules from their formulas, in float64; settings that make a step tell.

Knows: Loshchilov and Hutter's AdamW (arXiv:1711.05101), and the schedule of `OptimizerSpec`.
Does not know: torch.optim, or how a gradient came about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from areal_conformance.oracles.train import Oracle
from areal_core.contract.batch import Batch
from areal_core.contract.train import Objective, OptimizerSpec

_USUAL: Any = (0.9, 0.999)  # Any: the converter of `betas` has no type
_QUICK: Any = (0.8, 0.95)
# AdamW divides the gradient by its own size: only a large `eps` lets its scale, and clipping, show.
DESCENT = OptimizerSpec(lr=1e3, betas=_USUAL, eps=1e3, weight_decay=0.0, max_grad_norm=0.0)
"""The first step subtracts the gradient itself, to a part in a thousand or better: gradients become visible."""
SCALED = OptimizerSpec(lr=1e-2, betas=_QUICK, eps=1e-2, weight_decay=0.3, max_grad_norm=0.0)
"""Steps of a visible size that depend on the scale of the gradient, on both betas and on the weight decay."""


def learning_rate(spec: OptimizerSpec, step: int) -> float:
    """Return the rate of optimizer step number `step`, the first being 1.

    The warm-up rises by equal amounts and its last step has the full rate; what follows begins at the full
    rate and would reach the floor at step `total_steps + 1`, that is: after `total_steps` steps.
    """
    if step <= spec.warmup_steps:
        return spec.lr / spec.warmup_steps * step
    if spec.schedule == "constant":
        return spec.lr
    floor = spec.min_lr_ratio * spec.lr
    length = spec.total_steps - spec.warmup_steps
    gone = min(step - 1 - spec.warmup_steps, length) / length
    if spec.schedule == "linear":
        return spec.lr + (floor - spec.lr) * gone
    return floor + (spec.lr - floor) * (1.0 + math.cos(math.pi * gone)) / 2.0


class OracleTrainer:
    """An oracle that is trained: what the weights must be after each step."""

    def __init__(self, oracle: Oracle, spec: OptimizerSpec) -> None:
        self._oracle = oracle
        self._spec = spec
        self._steps = 0
        self._first: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in oracle.parameters.items()}
        self._second: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in oracle.parameters.items()}
        self.certain: dict[str, Tensor] = {
            n: torch.ones_like(p, dtype=torch.bool) for n, p in oracle.parameters.items()
        }
        """Where every gradient so far stood well above the rounding noise of float32, so that AdamW's
        division by it is no matter of luck."""
        self.loss, self.norm, self.lr = math.nan, math.nan, math.nan

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights now."""
        return {name: parameter.detach().clone() for name, parameter in self._oracle.parameters.items()}

    def step(self, batch: Batch, objective: Objective) -> None:
        """Make one step."""
        gradient = self._oracle.gradient(batch, objective)
        self._steps += 1
        self.loss, self.norm = gradient.loss, gradient.norm
        self.lr = learning_rate(self._spec, self._steps)
        limit = self._spec.max_grad_norm
        scale = limit / self.norm if 0.0 < limit < self.norm else 1.0
        largest = max(float(g.abs().max()) for g in gradient.by_name.values())
        with torch.no_grad():
            for name, parameter in self._oracle.parameters.items():
                raw = gradient.by_name[name]
                self.certain[name] &= (raw.abs() > 1e-4 * largest) & (raw.abs() > 1e-2 * raw.abs().max())
                parameter.mul_(1.0 - self.lr * self._spec.weight_decay)
                parameter.sub_(self.lr * self._direction(name, raw * scale))

    def _direction(self, name: str, gradient: Tensor) -> Tensor:
        beta1, beta2 = self._spec.betas
        self._first[name] = beta1 * self._first[name] + (1.0 - beta1) * gradient
        self._second[name] = beta2 * self._second[name] + (1.0 - beta2) * gradient**2
        first = self._first[name] / (1.0 - beta1**self._steps)
        second = self._second[name] / (1.0 - beta2**self._steps)
        return first / (second.sqrt() + self._spec.eps)
