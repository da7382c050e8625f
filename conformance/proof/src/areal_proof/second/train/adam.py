"""AdamW and its schedule, written out.

Knows: the update of one tensor, clipping, the learning rate of each step.
Does not know: where gradients come from; they are whole, and added over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from areal_core.contract.errors import PlanError, WrongType
from areal_core.contract.train import OptimizerSpec

SCHEDULES = ("constant", "linear", "cosine")


class AdamW:
    """Two moments beside each trained tensor, in `moments` under `first/` and `second/` names."""

    def __init__(self, trained: Mapping[str, Tensor], spec: OptimizerSpec) -> None:
        """Begin at zero."""
        if spec.schedule not in SCHEDULES:
            raise WrongType(f"unknown schedule {spec.schedule!r}", why=f"there are {', '.join(SCHEDULES)}")
        if spec.schedule != "constant" and spec.total_steps <= spec.warmup_steps:
            raise PlanError(
                f"schedule {spec.schedule!r} ends at step {spec.total_steps}, warm-up at {spec.warmup_steps}",
                why="nothing is left to fall over",
                fix="set optimizer.total_steps to the optimizer steps of the run",
            )
        self.spec = spec
        self.steps = 0
        self.trained = dict(trained)
        self.moments = {f"{k}/{n}": torch.zeros_like(t) for k in ("first", "second") for n, t in trained.items()}

    @property
    def lr(self) -> float:
        """Return the learning rate of the next step."""
        spec = self.spec
        if self.steps < spec.warmup_steps:
            return spec.lr * (self.steps + 1) / spec.warmup_steps
        if spec.schedule == "constant":
            return spec.lr
        done = min((self.steps - spec.warmup_steps) / (spec.total_steps - spec.warmup_steps), 1.0)
        left = 1 - done if spec.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return spec.lr * (spec.min_lr_ratio + (1 - spec.min_lr_ratio) * left)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], norm: float) -> bool:
        """Clip by the global `norm` and update; change nothing and return False if it is not finite."""
        if not math.isfinite(norm):
            return False
        spec, lr = self.spec, self.lr
        clip = spec.max_grad_norm / norm if 0 < spec.max_grad_norm < norm else 1.0
        self.steps += 1
        for name, tensor in self.trained.items():
            first, second = self.moments[f"first/{name}"], self.moments[f"second/{name}"]
            gradient = gradients[name] * clip
            first.mul_(spec.betas[0]).add_(gradient, alpha=1 - spec.betas[0])
            second.mul_(spec.betas[1]).add_(gradient.square(), alpha=1 - spec.betas[1])
            mean = first / (1 - spec.betas[0] ** self.steps)
            spread = (second / (1 - spec.betas[1] ** self.steps)).sqrt()
            tensor.mul_(1 - lr * spec.weight_decay).sub_(lr * mean / (spread + spec.eps))
        return True
