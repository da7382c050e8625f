"""How weights go on by their moments alone: after one step with a gradient, steps without one.

AdamW divides a moment by the root of another that came of the same gradient, so that the gradient cancels: how far
each weight goes follows from the betas alone, whatever model and dtype the gradient is of.

Knows: that way, and how far weights are off it.
Does not know: engines, or what error is too much (`probes.precision`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from areal_core.contract.train import OptimizerSpec
from areal_torch.testing.objectives import PolicyGradient

QUICK_BETAS: Any = (0.9, 0.95)  # Any: the converter of `betas` has no type
COAST = OptimizerSpec(lr=1e-2, betas=QUICK_BETAS, eps=1e-12, weight_decay=0.0, max_grad_norm=0.0)
"""After one step with a gradient, steps without one move each weight by what is left of its moments."""
NOTHING = PolicyGradient(entropy=0.0)
"""Of a batch whose advantages are 0 its gradient is 0."""


def coasting(steps: int) -> float:
    """Return how far so many steps without a gradient move a weight, as a multiple of the learning rate."""
    beta1, beta2 = COAST.betas
    total = 0.0
    for step in range(2, steps + 2):
        one = beta1 ** (step - 1) * (1.0 - beta1) / (1.0 - beta1**step)
        two = beta2 ** (step - 1) * (1.0 - beta2) / (1.0 - beta2**step)
        total += one / math.sqrt(two)
    return total


def off_course(
    before: Mapping[str, Tensor], first: Mapping[str, Tensor], now: Mapping[str, Tensor], wanted: float
) -> float:
    """Return the largest relative error of the way since the first step, of weights that it moved by the whole rate."""
    worst = 0.0
    for name, tensor in now.items():
        began = first[name].double() - before[name].double()
        moved = (began.abs() / COAST.lr - 1.0).abs() < 1e-4
        way = (tensor.double() - first[name].double())[moved] / (began.sign()[moved] * COAST.lr)
        if len(way):
            worst = max(worst, float((way / wanted - 1.0).abs().max()))
    return worst
