"""Metrics of micro-batches become one number each, whatever their order and signs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from areal_core.algorithms.sums import add_sums, means
from areal_core.contract.train import Sum

_NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6)


@given(_NUMBERS)
def test_an_extreme_is_that_of_its_values_alone(values: list[float]) -> None:
    """Also where all lie on one side of zero, from which sums begin."""
    total: dict[str, Sum] = {}
    for value in values:
        add_sums(total, {name: Sum(value=value, weight=1.0) for name in ("gap_min", "gap_max")})

    assert means(total) == {"gap_min": min(values), "gap_max": max(values)}


@given(_NUMBERS, st.data())
def test_a_sum_is_divided_by_the_weight_of_all(values: list[float], data: st.DataObject) -> None:
    """In any order; what has no weight at all is left out."""
    total: dict[str, Sum] = {}
    for value in data.draw(st.permutations(values)):
        add_sums(total, {"kl": Sum(value=value, weight=2.0), "none": Sum(value=0.0, weight=0.0)})

    found = means(total)
    assert found.keys() == {"kl"}
    assert abs(found["kl"] - sum(values) / (2 * len(values))) <= 1e-6 * (1 + max(map(abs, values)))
