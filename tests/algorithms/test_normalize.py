"""Normalisation: statistics by explicit ids, against an oracle and against values observed elsewhere."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_algorithms.normalize import normalize, places
from areal_core.algorithms.config import NormConfig, NormLevel

from .oracle import normalized

CONFIGS = [
    NormConfig(mean=mean, std=std, leave_one_out=loo, unbiased=unbiased)
    for mean, std, loo, unbiased in itertools.product(NormLevel, NormLevel, (False, True), (False, True))
]
ROW = st.tuples(st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0, 3.5]), st.integers(0, 3), st.booleans())


def _normalized(values: list[float], groups: list[int], config: NormConfig) -> list[float]:
    return normalize(torch.tensor(values), config, groups=torch.tensor(groups, dtype=torch.int64)).tolist()


@settings(max_examples=60, deadline=None)
@given(table=st.lists(ROW, max_size=12))
def test_every_configuration_equals_the_oracle(table: list[tuple[float, int, bool]]) -> None:
    """Levels, leave-one-out and bias agree with a per-element loop on any groups and any mask."""
    values = torch.tensor([row[0] for row in table], dtype=torch.float32)
    groups, mask = [row[1] for row in table], [row[2] for row in table]

    for config in CONFIGS:
        actual = normalize(
            values, config, groups=torch.tensor(groups, dtype=torch.int64), mask=torch.tensor(mask, dtype=torch.bool)
        )
        expected = normalized(
            values.tolist(),
            groups,
            mask,
            mean=config.mean.value,
            std=config.std.value,
            leave_one_out=config.leave_one_out,
            unbiased=config.unbiased,
            eps=config.eps,
        )
        assert expected == pytest.approx(actual.tolist(), rel=1e-6, abs=1e-7), config


def test_a_group_of_two_is_half_root_two_apart() -> None:
    """Group mean and unbiased group std of [1, 0] give +-0.7071, up to eps."""
    config = NormConfig(mean=NormLevel.GROUP, std=NormLevel.GROUP, eps=1e-5)

    actual = _normalized([1.0, 0.0, 0.0, 1.0], [7, 7, 3, 3], config)

    assert pytest.approx(actual, abs=5e-5) == [0.7071, -0.7071, -0.7071, 0.7071]


def test_leave_one_out_without_std_subtracts_the_mean_of_the_others() -> None:
    """[1, 0, 0, 0] becomes [1, -1/3, -1/3, -1/3]."""
    config = NormConfig(mean=NormLevel.GROUP, leave_one_out=True)

    actual = _normalized([1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0], config)

    assert pytest.approx(actual) == [1.0, -1 / 3, -1 / 3, -1 / 3]


def test_v5_the_std_is_about_the_plain_mean_under_leave_one_out() -> None:
    """LOO + group std over [1, 0, 0, 0] divides by the true std 0.5, not by one inflated to 2/3."""
    config = NormConfig(mean=NormLevel.GROUP, std=NormLevel.GROUP, leave_one_out=True, eps=0.0)

    actual = _normalized([1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0], config)

    assert pytest.approx(actual) == [2.0, -2 / 3, -2 / 3, -2 / 3]


@pytest.mark.parametrize("mean", list(NormLevel))
def test_v4_a_leftover_of_a_group_is_never_divided_by_eps(mean: NormLevel) -> None:
    """A single row under a group std stays of the size of a reward at every mean level."""
    config = NormConfig(mean=mean, std=NormLevel.GROUP)

    actual = _normalized([1.0, 0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1, 2], config)

    assert abs(actual[4]) <= 1.0


def test_v4_groups_of_different_sizes_in_any_order_do_not_mix() -> None:
    """Interleaved groups of 3 and 2 give each member the value it has in its group alone."""
    config = NormConfig(mean=NormLevel.GROUP, std=NormLevel.GROUP)

    mixed = _normalized([1.0, 5.0, 0.0, 6.0, 1.0], [4, 9, 4, 9, 4], config)

    assert _normalized([1.0, 0.0, 1.0], [0, 0, 0], config) == [mixed[0], mixed[2], mixed[4]]
    assert _normalized([5.0, 6.0], [0, 0], config) == [mixed[1], mixed[3]]


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_a_group_of_one_has_no_signal_under_a_group_mean(leave_one_out: bool) -> None:
    """Alone there is no baseline, so the value is exactly 0, with leave-one-out too."""
    config = NormConfig(mean=NormLevel.GROUP, std=NormLevel.GROUP, leave_one_out=leave_one_out)

    assert _normalized([1.0], [5], config) == [0.0]


def test_members_that_agree_are_exactly_zero_whatever_rounds() -> None:
    """0.1 three times has a float mean that is not 0.1; the result is 0 all the same."""
    config = NormConfig(mean=NormLevel.GROUP, std=NormLevel.GROUP, eps=0.0)

    assert _normalized([0.1, 0.1, 0.1], [0, 0, 0], config) == [0.0, 0.0, 0.0]


def test_no_std_divides_by_exactly_one() -> None:
    """Without std the eps does not appear: centred values come back bit for bit."""
    assert _normalized([1.0, 0.0], [0, 0], NormConfig(mean=NormLevel.BATCH)) == [0.5, -0.5]


def test_statistics_are_float64() -> None:
    """A large common offset does not eat the differences that carry the signal."""
    offset = float(2**23)
    config = NormConfig(mean=NormLevel.BATCH, std=NormLevel.BATCH, unbiased=False, eps=0.0)

    actual = _normalized([offset, offset + 1, offset, offset + 1], [0] * 4, config)

    assert actual == [-1.0, 1.0, -1.0, 1.0]


def test_values_off_the_mask_are_zero_and_in_no_statistic() -> None:
    """A NaN outside the mask does not reach anything inside it."""
    x, mask = torch.tensor([1.0, math.nan, 3.0]), torch.tensor([True, False, True])
    config = NormConfig(mean=NormLevel.BATCH)

    actual = normalize(x, config, groups=torch.zeros(3, dtype=torch.int64), mask=mask)

    assert actual.tolist() == [-1.0, 0.0, 1.0]


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_places_are_those_of_a_sorted_set(ids: list[int]) -> None:
    """Ids that come again after others, negative ones and none at all have the place and number that unique gives."""
    groups = torch.tensor(ids, dtype=torch.int64)
    _, place, number = torch.unique(groups, return_inverse=True, return_counts=True)

    assert [place.tolist(), number.tolist()] == [part.tolist() for part in places(groups)]
