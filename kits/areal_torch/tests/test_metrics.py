"""Metrics of shards into those of a step."""

from __future__ import annotations

from areal_core.contract.train import Sum
from areal_torch.step import _add_metrics


def test_values_and_weights_add_and_of_extremes_the_further_one_stays() -> None:
    """A shard may lack some; one extreme that was added before stays recognisable by its weight."""
    shards: list[dict[str, list[float]]] = [
        {"ratio": [3.0, 2.0], "ratio_max": [1.5, 1.0], "ratio_min": [0.5, 1.0], "added_max": [3.0, 2.0]},
        {"ratio": [1.0, 2.0], "ratio_max": [90.0, 1.0], "ratio_min": [-2.0, 1.0], "added_max": [7.0, 1.0]},
        {"ratio_max": [2.0, 1.0]},
    ]

    assert _add_metrics(shards) == {
        "ratio": Sum(value=4.0, weight=4.0),
        "ratio_max": Sum(value=90.0, weight=1.0),
        "ratio_min": Sum(value=-2.0, weight=1.0),
        "added_max": Sum(value=10.0, weight=3.0),
    }


def test_an_extreme_below_zero_is_no_zero() -> None:
    """The first one is not compared with where counting begins."""
    shards = [{"gap_max": [-3.0, 1.0], "gap_min": [4.0, 1.0]}]

    assert _add_metrics(shards) == {"gap_max": Sum(value=-3.0, weight=1.0), "gap_min": Sum(value=4.0, weight=1.0)}
