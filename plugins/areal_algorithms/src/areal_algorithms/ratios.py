"""Importance ratios between the three policies of asynchronous PPO, and estimates of a KL divergence.

Knows: policy / proximal (the clipped ratio, with gradient) and proximal / behaviour (the weight, without).
Does not know: advantages, losses, or where the log-probs come from.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from areal_algorithms.reduction import sequence_mean
from areal_core.algorithms.config import BehaviourConfig, BehaviourWeight, KLEstimator, RatioLevel
from areal_core.contract.batch import Batch

LOG_RATIO_BOUND = 20.0
"""Policy log-ratios are held inside +-20, where exp and its gradient are finite in every dtype but float16."""


def policy_ratio(logprobs: Tensor, proximal: Tensor, batch: Batch, level: RatioLevel) -> Tensor:
    """Return policy / proximal per generated token, with gradient; 0 off the mask [T].

    At sequence level every token gets exp of its sequence's mean log-ratio (GSPO, arXiv 2507.18071).
    Log-ratios are clamped to [-20, 20], so an infinite one is bounded and has no gradient; NaN stays
    NaN, so that the engine skips the step and says so.
    """
    mask = batch.tokens["loss_mask"]
    log_ratio = torch.where(mask, logprobs - proximal, 0.0)
    if level is RatioLevel.SEQUENCE:
        log_ratio = sequence_mean(log_ratio, batch)
    ratio = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    return torch.where(mask, ratio, 0.0)


@frozen(kw_only=True, eq=False)
class Weighted:
    """What the behaviour weight does to each token.

    weight:  [T], no gradient; 0 off the mask and for dropped tokens.
    touched: bool [T], generated tokens that were dropped or whose weight was changed.
    """

    weight: Tensor
    touched: Tensor


def behaviour_weight(proximal: Tensor, behaviour: Tensor, batch: Batch, config: BehaviourConfig) -> Weighted:
    """Return w = proximal / behaviour, as `config.mode` would have it: 1, clamped, or out-of-bounds dropped.

    A log-ratio that is not finite (a sampler that returned -inf) counts as 0, w = 1. At sequence
    level w is exp of the mean log-ratio. The bounds belong to the inside.
    """
    mask = batch.tokens["loss_mask"]
    if config.mode is BehaviourWeight.NONE:
        return Weighted(weight=mask.to(proximal.dtype), touched=torch.zeros_like(mask))
    log_weight = (proximal - behaviour).detach()
    log_weight = torch.where(mask & log_weight.isfinite(), log_weight, 0.0)
    if config.level is RatioLevel.SEQUENCE:
        log_weight = sequence_mean(log_weight, batch)
    weight = log_weight.exp()
    touched = mask & ((weight > config.upper) | (weight < config.lower))
    if config.mode is BehaviourWeight.CLAMP:
        return Weighted(weight=torch.where(mask, weight.clamp(config.lower, config.upper), 0.0), touched=touched)
    return Weighted(weight=torch.where(mask & ~touched, weight, 0.0), touched=touched)


KL_BOUND = 10.0
"""No token counts for more than this, in nats; a single unlikely token must not own a batch."""


def kl_estimate(logprobs: Tensor, base: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(sampler || base) per token, of tokens drawn from the sampler.

    With x = logprobs - base: k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x (http://joschu.net/blog/kl-approx.html).

    Args:
        logprobs: of the policy the tokens were drawn from [T].
        base: of the policy compared with [T].

    Returns:
        [T], clamped to [-10, 10]; NaN stays NaN.
    """
    # Beyond +-20 every estimator is past its bound, and an infinite x would give inf - inf in k3.
    x = (logprobs - base).clamp(-2 * KL_BOUND, 2 * KL_BOUND)
    if estimator is KLEstimator.K1:
        kl = x
    elif estimator is KLEstimator.K2:
        kl = x.square() / 2
    else:
        kl = (-x).exp() - 1 + x
    return kl.clamp(-KL_BOUND, KL_BOUND)
