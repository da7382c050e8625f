"""M2PO: who is dropped is one cut through the whole batch."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_algorithms.columns import make_columns
from areal_algorithms.ratios import second_moment_kept
from areal_core.algorithms.config import AlgorithmConfig
from areal_core.plugins.registry import default_registry
from areal_core.plugins.structure import structure

from . import oracle
from .cases import packed

FAR = st.floats(-2, 2, allow_nan=False) | st.sampled_from([0.0, 0.1, -0.1, 0.5, -0.5])


def _kept(log_weights: list[float], threshold: float) -> list[bool]:
    column = torch.tensor(log_weights, dtype=torch.float64)
    mask = torch.ones_like(column, dtype=torch.bool)
    return second_moment_kept(column, torch.zeros_like(column), mask, threshold).tolist()


def test_published_values() -> None:
    """Log-weights 1, 0.1, 0.3, 0.2 and threshold 0.04: the two closest stay, of mean square 0.025."""
    assert _kept([1.0, 0.1, 0.3, 0.2], 0.04) == [False, True, False, True]


@settings(max_examples=300, deadline=None)
@given(log_weights=st.lists(FAR, max_size=12), threshold=st.sampled_from([0.0111, 0.0417, 0.513]))
def test_the_furthest_go_until_the_mean_square_is_small_enough(log_weights: list[float], threshold: float) -> None:
    """It is dropping one after the other by hand; those equally far off stay or go together, in any order of rows."""
    assert _kept(log_weights, threshold) == oracle.second_moment(log_weights, threshold)
    assert _kept(log_weights[::-1], threshold) == _kept(log_weights, threshold)[::-1]


def test_a_run_marks_the_whole_batch_before_it_is_cut() -> None:
    """The column is there for every minibatch; prompts are in no statistic; an infinite log-weight counts as 0."""
    algorithm = structure(AlgorithmConfig, {"proximal": "recompute", "behaviour": {"mode": "second_moment"}})
    columns = make_columns(algorithm, default_registry(), max_new_tokens=4)
    batch = packed([[0, 1, 1], [0, 1, 1]], logprobs=[9.0, 0.0, 0.0, 9.0, 0.0, -torch.inf])

    marked, _ = columns(batch, 1, torch.tensor([0.0, 1.0, 0.1, 0.0, 0.2, -1.0]))

    assert marked.tokens["behaviour_kept"].tolist() == [False, False, True, False, True, True]
