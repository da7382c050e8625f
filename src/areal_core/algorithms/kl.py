"""Schulman's one-sample estimators of a KL divergence.

Knows: two log-probs of the same token.
Does not know: which policies they belong to, or what the estimate is used for.
"""

from __future__ import annotations

from torch import Tensor

from areal_core.algorithms.config import KLEstimator

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
