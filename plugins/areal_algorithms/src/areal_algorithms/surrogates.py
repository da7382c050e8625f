"""Forms of the policy's surrogate loss, per token: clipped, gated, with a clipped weight, or plain.

Knows: a ratio with gradient, advantages, and how far the ratio may count.
Does not know: where the ratio comes from, behaviour weights, or what becomes of the losses.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from attrs import frozen
from torch import Tensor


class Surrogate(StrEnum):
    """What is minimised for one token, with ratio r and advantage A."""

    CLIP = "clip"
    """max(-A r, -A clip(r)), perhaps bounded by `dual_clip` (PPO, arXiv 1707.06347)."""
    SOFT_GATE = "soft_gate"
    """-A (4 / tau) sigmoid(tau (r - 1)): the gradient fades instead of ending (SAPO, arXiv 2511.20347)."""
    CISPO = "cispo"
    """-A sg[clip(r)] log p: the weight is clipped, and every token keeps a gradient (arXiv 2506.13585)."""
    UNCLIPPED = "unclipped"
    """-A r"""


@frozen(kw_only=True, eq=False)
class Losses:
    """Per-token columns [T] of one micro-batch.

    clipped: bool, where the bound decided. dual_clipped: bool, where `dual_clip` did.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def clip(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None) -> Losses:
    """Return PPO's loss: no gradient where the ratio is past `low` or `high` already and would go on."""
    plain, bounded = -advantages * ratio, -advantages * ratio.clamp(low, high)
    loss, clipped = torch.maximum(plain, bounded), plain < bounded
    dual_clipped = torch.zeros_like(clipped)
    if dual is not None:
        cap = dual * advantages.abs()
        dual_clipped = loss > cap
        loss = torch.minimum(loss, cap)
    return Losses(loss=loss, ratio=ratio, clipped=clipped, dual_clipped=dual_clipped)


def soft_gate(ratio: Tensor, advantages: Tensor, tau_positive: float, tau_negative: float) -> Losses:
    """Return SAPO's loss: at r = 1 the gradient of plain PPO, less the further off; tau by the advantage's sign."""
    tau = torch.full_like(ratio, tau_negative).masked_fill(advantages > 0, tau_positive)
    gate = 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0))
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return Losses(loss=-advantages * gate, ratio=ratio, clipped=never, dual_clipped=never)


def cispo(ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float) -> Losses:
    """Return the policy gradient with a clipped, constant weight."""
    weight = ratio.detach().clamp(low, high)
    clipped = (ratio < low) | (ratio > high)
    return Losses(
        loss=-advantages * weight * logprobs, ratio=ratio, clipped=clipped, dual_clipped=torch.zeros_like(clipped)
    )


def unclipped(ratio: Tensor, advantages: Tensor) -> Losses:
    """Return the importance-weighted policy gradient; bound it by a behaviour weight."""
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return Losses(loss=-advantages * ratio, ratio=ratio, clipped=never, dual_clipped=never)
