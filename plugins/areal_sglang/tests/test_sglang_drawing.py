"""Filters keep what the contract says, and every request has a stream of its own."""

from __future__ import annotations

import torch

from areal_sglang.inside.drawing import keep_best, stream_key
from areal_torch.drawing import uniforms

SHARES = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
OFF = torch.tensor([1 << 30])


def kept(*, top_k: int = 1 << 30, top_p: float = 1.0, min_p: float = 0.0) -> list[float]:
    """Return SHARES after these filters."""
    row = keep_best(SHARES, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    return [round(share, 4) for share in row[0].tolist()]


def test_top_k_keeps_the_k_best() -> None:
    """What is left sums to 1: its logs are the log-probs reported."""
    assert kept(top_k=2) == [0.625, 0.375, 0.0, 0.0]


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    """The token that crosses p stays."""
    assert kept(top_p=0.6) == [0.625, 0.375, 0.0, 0.0]
    assert kept(top_p=0.01) == [1.0, 0.0, 0.0, 0.0]


def test_top_p_is_of_what_top_k_left() -> None:
    """SGLang's own sampler adds up shares of the whole vocabulary, which keeps more."""
    assert kept(top_k=2, top_p=0.6) == [1.0, 0.0, 0.0, 0.0]


def test_min_p_is_a_share_of_the_best() -> None:
    """0.3 of 0.5 is 0.15: the third is not less."""
    assert kept(min_p=0.3) == [0.5263, 0.3158, 0.1579, 0.0]


def test_min_p_comes_before_top_p() -> None:
    """0.5 of the 0.8 that min_p leaves is more than 0.6, so one token reaches it."""
    assert kept(min_p=0.5, top_p=0.62) == [1.0, 0.0, 0.0, 0.0]


def test_uniforms_are_uniform() -> None:
    """Over positions of one stream, and over streams at one position."""
    count = 40_000
    keys = torch.tensor([stream_key(seed, 0, "") for seed in range(count)])
    for drawn in (uniforms(keys[:1].expand(count), torch.arange(count)), uniforms(keys, torch.zeros_like(keys))):
        assert abs(drawn.mean().item() - 0.5) < 0.01
        assert 0.0 <= drawn.min().item() < 0.001
        assert 0.999 < drawn.max().item() < 1.0


def test_requests_without_a_seed_differ() -> None:
    """SGLang's deterministic mode gives all of them the seed 42: a group would be one sample many times."""
    assert stream_key(None, 1, "areal-1.") != stream_key(None, 1, "areal-2.")
    assert stream_key(None, 1, "areal-1.") != stream_key(None, 2, "areal-1.")


def test_a_seed_is_all_that_counts() -> None:
    """Whatever the request is called, and whatever the server's seed."""
    assert stream_key(7, 1, "areal-1.") == stream_key(7, 2, "areal-9.")
