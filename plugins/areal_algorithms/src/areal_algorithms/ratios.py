"""Importance ratios between the three policies of asynchronous PPO, and estimates of a KL divergence.

Knows: policy / proximal (the clipped ratio, with gradient) and proximal / behaviour (the weight, without).
Does not know: advantages, losses, or where the log-probs come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from attrs import frozen
from torch import Tensor

from areal_algorithms.reduction import sequence_mean, sequence_sum
from areal_core.algorithms.config import (
    Aggregate,
    BehaviourConfig,
    BehaviourMetric,
    BehaviourWeight,
    KLEstimator,
    RatioLevel,
)
from areal_core.contract.batch import Batch

LOG_RATIO_BOUND = 20.0
"""Policy log-ratios are held inside +-20, where exp and its gradient are finite in every dtype but float16."""


def policy_ratio(
    logprobs: Tensor, proximal: Tensor, batch: Batch, level: RatioLevel, aggregate: Aggregate = Aggregate.MEAN
) -> Tensor:
    """Return policy / proximal per generated token, with gradient; 0 off the mask [T].

    At sequence level every token gets exp of its sequence's mean log-ratio (GSPO, arXiv 2507.18071), or of their
    sum, which is the ratio of the sequence's probabilities. Log-ratios are clamped to [-20, 20], so an infinite one
    is bounded and has no gradient; NaN stays NaN, so that the engine skips the step and says so.
    """
    mask = batch.tokens["loss_mask"]
    log_ratio = torch.where(mask, logprobs - proximal, 0.0)
    if level is RatioLevel.SEQUENCE:
        log_ratio = _aggregated(log_ratio, batch, aggregate)
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

    A log-ratio that is not finite (a sampler that returned -inf) counts as 0, w = 1. At sequence level, with the
    metric `ratio` and another aggregate than `max`, w is the sequence's. The bounds belong to the inside. Whom
    `second_moment` keeps was decided over the whole batch: the column `behaviour_kept`.
    """
    mask = batch.tokens["loss_mask"]
    if config.mode is BehaviourWeight.NONE:
        return Weighted(weight=mask.to(proximal.dtype), touched=torch.zeros_like(mask))
    log_weight = finite_log_weight(proximal, behaviour, mask)
    if config.mode is BehaviourWeight.SECOND_MOMENT:
        touched = mask & ~batch.tokens["behaviour_kept"]
    else:
        log_weight, touched = _out_of_bounds(log_weight, batch, config)
    weight = log_weight.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    if config.mode is BehaviourWeight.CLAMP:
        return Weighted(weight=torch.where(mask, weight.clamp(*config.bounds), 0.0), touched=touched)
    return Weighted(weight=torch.where(mask & ~touched, weight, 0.0), touched=touched)


def finite_log_weight(proximal: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    """Return log (proximal / behaviour) [T] without gradient, 0 off the mask and where it is not finite."""
    log_weight = (proximal - behaviour).detach()
    return torch.where(mask & log_weight.isfinite(), log_weight, 0.0)


def _out_of_bounds(log_weight: Tensor, batch: Batch, config: BehaviourConfig) -> tuple[Tensor, Tensor]:
    """Return the log-weight of every token, perhaps its sequence's, and which tokens the bounds leave out, bool [T]."""
    lower, upper = config.bounds
    metric = _METRICS[config.metric](log_weight)
    if config.level is RatioLevel.SEQUENCE and config.aggregate is not Aggregate.MAX:
        metric = _aggregated(metric, batch, config.aggregate)
        log_weight = metric if config.metric is BehaviourMetric.RATIO else log_weight
    if config.metric is BehaviourMetric.RATIO:
        metric = metric.exp()
    out = batch.tokens["loss_mask"] & ((metric > upper) | (metric < lower))
    if config.level is RatioLevel.SEQUENCE and config.aggregate is Aggregate.MAX:
        out = sequence_sum(out.to(log_weight.dtype), batch) > 0
    return log_weight, out


_METRICS: Mapping[BehaviourMetric, Callable[[Tensor], Tensor]] = {
    BehaviourMetric.RATIO: lambda x: x,
    BehaviourMetric.K1: lambda x: -x,
    BehaviourMetric.K2: lambda x: x.square() / 2,
    BehaviourMetric.K3: lambda x: x.exp() - 1 - x,
}
"""Of log w: what is aggregated over a sequence. KL(behaviour || proximal), of tokens drawn from behaviour."""


def _aggregated(x: Tensor, batch: Batch, aggregate: Aggregate) -> Tensor:
    return sequence_mean(x, batch) if aggregate is Aggregate.MEAN else sequence_sum(x, batch)


def second_moment_kept(proximal: Tensor, behaviour: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Return who stays, bool [T]: the most tokens, those closest first, whose mean (log w)^2 is at most `threshold`.

    M2PO, arXiv 2510.01161. Called on the whole batch: the cut is at one place for all of it. Tokens that are equally
    far off stay or go together, so that the order of the rows does not matter.
    """
    squares = finite_log_weight(proximal.to(torch.float64), behaviour.to(torch.float64), mask).square()
    ordered = squares[mask].sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    num_kept = int((means <= threshold).sum())
    return mask if num_kept == len(ordered) else mask & (squares < ordered[num_kept])


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


def kl_loss(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Return a term [T] whose gradient, on average over tokens of the policy, is that of a KL; see `KLLossConfig`.

    With x = logprobs - reference: k2 = x^2 / 2, gradient x, that of KL(policy || reference); k3 = exp(-x) - 1 + x,
    gradient 1 - exp(-x), that of KL(reference || policy). The value is not clamped: where the policy is far off the
    pull back must not end. Beyond e^20 the exponential goes on as a straight line.
    """
    x = logprobs - reference
    if estimator is KLEstimator.K2:
        return x.square() / 2
    if estimator is KLEstimator.K1:
        return x
    held = (-x).clamp(max=LOG_RATIO_BOUND)
    return held.exp() * (1 - x - held) - 1 + x
