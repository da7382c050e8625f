"""Numbers of an evaluation, each with how sure it is: means over prompts, pass@k, confidence intervals.

Prompts are the clusters. The samples of one prompt say the same thing several times, so the error of a score comes
from how prompts differ, not from how many samples there are.

Knows: formulas and where they are from.
Does not know: what is evaluated, or what a reward means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

from attrs import frozen


@frozen(kw_only=True)
class Estimate:
    """One number over prompts. `error` is its standard error; None where the prompts cannot tell.

    Example: Estimate(value=0.42, error=0.03, low=0.36, high=0.48, prompts=256)
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    prompts: int


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return how probable it is that one of k samples passes: 1 - C(n - c, k) / C(n, k).

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1): of all ways to draw k of the n samples
    without putting one back, the share with at least one of the c that passed. Computed in whole numbers and rounded
    once.
    """
    assert 0 <= num_passed <= num_samples and 1 <= k <= num_samples
    ways = math.comb(num_samples, k)
    return (ways - math.comb(num_samples - num_passed, k)) / ways


def estimate(scores: Sequence[float], *, confidence: float, share: bool = False) -> Estimate | None:
    """Return the mean of one score per prompt with its confidence interval; None without a prompt.

    With m prompts of scores s_1 .. s_m and their mean s, the standard error is sqrt(sum (s_i - s)^2 / (m (m - 1))) and
    the interval s -+ z * error, z the normal quantile of (1 + confidence) / 2: Miller 2024 (arXiv 2411.00640), with
    the samples of a prompt as one cluster and every prompt weighing the same. One prompt, or prompts that all score
    the same, show no spread: then there is no interval, except where all scores of a `share` are 0, or all 1. With
    d = (1 - confidence) / 2 the far bound is then 1 - d ** (1 / m) away, that of Clopper and Pearson 1934 for no event
    in m trials: a mean score is never more than the probability of a score above 0.

    Args:
        scores: one per prompt, the mean over its samples or its pass@k.
        confidence: of the interval, for example 0.95.
        share: scores lie in [0, 1], and so does the interval.
    """
    if not scores:
        return None
    mean, count = fmean(scores), len(scores)
    if min(scores) < max(scores):
        error = stdev(scores) / math.sqrt(count)
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
        low, high = mean - reach, mean + reach
        if share:
            low, high = max(0.0, low), min(1.0, high)
        return Estimate(value=mean, error=error, low=low, high=high, prompts=count)
    bound = 1 - ((1 - confidence) / 2) ** (1 / count)
    if share and mean == 0:
        return Estimate(value=mean, error=None, low=0.0, high=bound, prompts=count)
    if share and mean == 1:
        return Estimate(value=mean, error=None, low=1 - bound, high=1.0, prompts=count)
    return Estimate(value=mean, error=None, low=None, high=None, prompts=count)
