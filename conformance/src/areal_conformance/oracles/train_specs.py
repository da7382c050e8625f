"""Optimizer settings that make a step tell what it was made of.

AdamW divides the gradient by its own size, so with a small `eps` a gradient of the wrong scale, or clipped or
not, takes the same step. A large `eps` lets the scale through.

Knows: which settings show what.
Does not know: engines or oracles.
"""

from __future__ import annotations

from typing import Any

from areal_core.contract.train import OptimizerSpec

_USUAL: Any = (0.9, 0.999)  # Any: the converter of `betas` has no type
_QUICK: Any = (0.8, 0.95)

DESCENT = OptimizerSpec(lr=1e3, betas=_USUAL, eps=1e3, weight_decay=0.0, max_grad_norm=0.0)
"""The first step subtracts the gradient itself, to a part in a thousand or better: gradients become visible."""

SCALED = OptimizerSpec(lr=1e-2, betas=_QUICK, eps=1e-2, weight_decay=0.3, max_grad_norm=0.0)
"""Steps of a visible size that depend on the scale of the gradient, on both betas and on the weight decay."""
