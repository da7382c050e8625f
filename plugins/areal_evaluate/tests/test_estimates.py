"""The estimates are what brute force over every draw says, in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_evaluate.estimates import estimate, pass_at_k


@settings(deadline=None, max_examples=200)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(passed: list[bool], data: st.DataObject) -> None:
    """Every way to draw k of the samples is enumerated; the result is the nearest float to the exact share."""
    k = data.draw(st.integers(1, len(passed)))
    draws = list(combinations(passed, k))

    assert pass_at_k(len(passed), sum(passed), k) == float(Fraction(sum(map(any, draws)), len(draws)))


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in range(1, 8) for k in range(1, n + 1)])
@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(0), Fraction(1), Fraction(9, 10)])
def test_pass_at_k_is_unbiased(n: int, k: int, rate: Fraction) -> None:
    """Over all outcomes of n samples that each pass with a rate, its mean is 1 - (1 - rate) ** k, exactly.

    The estimate 1 - (1 - c / n) ** k, often seen instead, is not: the same sum tells them apart.
    """
    unbiased = plugged_in = Fraction(0)
    for outcome in product((True, False), repeat=n):
        chance = math.prod((rate if one else 1 - rate) for one in outcome)
        passed = sum(outcome)
        ways = math.comb(n, k)
        exact = Fraction(ways - math.comb(n - passed, k), ways)
        assert pass_at_k(n, passed, k) == float(exact)
        unbiased += chance * exact
        plugged_in += chance * (1 - (1 - Fraction(passed, n)) ** k)

    assert unbiased == 1 - (1 - rate) ** k
    if k > 1 and rate not in (0, 1):
        assert plugged_in != unbiased


def test_pass_at_k_does_not_overflow() -> None:
    """Ten thousand samples, one of which passed: k / n, as it must be."""
    assert pass_at_k(10_000, 1, 2_500) == 0.25
    assert pass_at_k(10_000, 10_000, 10_000) == 1.0
    assert pass_at_k(10_000, 0, 10_000) == 0.0


@settings(deadline=None, max_examples=200)
@given(st.lists(st.fractions(-4, 4, max_denominator=64), min_size=2, max_size=40))
def test_the_interval_is_the_formula_in_exact_fractions(scores: list[Fraction]) -> None:
    """Mean, standard error and both ends, from sums of squares that no float has rounded."""
    count, mean = len(scores), sum(scores) / len(scores)
    variance = sum((each - mean) ** 2 for each in scores) / (count * (count - 1))

    found = estimate([float(each) for each in scores], confidence=0.9)

    assert found is not None and found.prompts == count
    assert found.value == pytest.approx(float(mean), abs=1e-12)
    if not variance:
        assert (found.error, found.low, found.high) == (None, None, None)
        return
    error = math.sqrt(variance)
    reach = NormalDist().inv_cdf(0.95) * error
    assert found.error == pytest.approx(error, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((float(mean) - reach, float(mean) + reach), rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=8))
def test_the_error_is_of_prompts_not_of_samples(prompts: list[list[bool]]) -> None:
    """It is the clustered standard error of all samples, up to the factor m / (m - 1) of a sample of clusters."""
    scores = [sum(prompt) / len(prompt) for prompt in prompts]
    mean, count, num_samples = Fraction(sum(map(sum, prompts)), 4 * len(prompts)), len(prompts), 4 * len(prompts)
    clustered = sum((one - mean) * (other - mean) for prompt in prompts for one in prompt for other in prompt)
    clustered = Fraction(clustered) / num_samples**2 * Fraction(count, count - 1)

    found = estimate(scores, confidence=0.95, share=True)

    assert found is not None
    assert (found.error or 0.0) == pytest.approx(math.sqrt(clustered), abs=1e-12)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """All outcomes of 60 prompts of two samples each, weighed by their exact chances: at least 93 of 100 do."""
    rate, count = Fraction(2, 5), 60
    chances = [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    covered = Fraction(0)
    for halves in range(count + 1):
        for wholes in range(count + 1 - halves):
            zeros = count - halves - wholes
            ways = math.comb(count, halves) * math.comb(count - halves, wholes)
            chance = ways * chances[0] ** zeros * chances[1] ** halves * chances[2] ** wholes
            found = estimate([0.0] * zeros + [0.5] * halves + [1.0] * wholes, confidence=0.95, share=True)
            assert found is not None
            if found.low is not None and found.high is not None and found.low <= rate <= found.high:
                covered += chance

    assert 0.93 < covered < 0.97


@pytest.mark.parametrize("count", [1, 2, 10, 300])
def test_prompts_that_all_fail_still_leave_room(count: int) -> None:
    """The bound is the rate at which so many failures in a row have half of what is left of the confidence."""
    none, every = (estimate([score] * count, confidence=0.95, share=True) for score in (0.0, 1.0))

    assert none is not None and every is not None
    assert none.low == 0.0 and every.high == 1.0
    assert none.high is not None and (1 - none.high) ** count == pytest.approx(0.025)
    assert every.low == pytest.approx(1 - none.high)


def test_what_prompts_cannot_tell_is_not_told() -> None:
    """No prompt, no number; one prompt, or rewards that are all the same, and no interval."""
    assert estimate([], confidence=0.95) is None
    for scores in ([0.5], [0.5, 0.5], [0.0, 0.0]):
        found = estimate(scores, confidence=0.95)
        assert found is not None and (found.error, found.low, found.high) == (None, None, None)
    half = estimate([0.5, 0.5], confidence=0.95, share=True)
    assert half is not None and half.low is None
    near = estimate([1.0] * 9 + [0.9], confidence=0.95, share=True)
    assert near is not None and near.high == 1.0, "a share stays in [0, 1]"
