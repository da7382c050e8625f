"""The sampler draws from the distribution it reports, the same for a row wherever it stands."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from areal_reference.infer.sampling import (
    RowSampling,
    distribution_logits,
    request_key,
    sample,
    stream_key,
    uniforms,
)
from areal_torch import drawing


def rows(num, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=None, greedy=False, fixed_shape=False):
    """Return the sampling of `num` equal rows."""
    none = np.zeros(0, dtype=np.int64)
    return RowSampling(
        greedy=np.full(num, greedy),
        temperature=np.full(num, temperature, dtype=np.float32),
        top_k=np.full(num, top_k),
        top_p=np.full(num, top_p),
        min_p=np.full(num, min_p),
        uniform=np.linspace(0, 1, num, endpoint=False) if uniform is None else uniform,
        forbidden_rows=none,
        forbidden_ids=none,
        seen_rows=none,
        seen_ids=none,
        seen_scale=none.astype(np.float32),
        seen_minus=none.astype(np.float32),
        fixed_shape=fixed_shape,
    )


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}])
def test_draws_follow_the_distribution(options):
    """Chi-square of 20,000 draws with streams of consecutive seeds, against the distribution reported."""
    num = 20_000
    logits = torch.linspace(-1.5, 1.5, 10).repeat(num, 1)
    keys = np.array([stream_key(seed) for seed in range(num)], dtype=np.uint64)
    drawn, logprobs = sample(logits, rows(num, uniform=uniforms(keys, np.full(num, 3)), **options))

    expected = torch.softmax(distribution_logits(logits[:1], rows(1, **options))[0], -1).numpy() * num
    counts = np.bincount(drawn.numpy(), minlength=10)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < 27.9, "chi-square with at most 9 degrees of freedom exceeds its 99.9% quantile"
    torch.testing.assert_close(logprobs.exp(), torch.from_numpy(expected / num).float()[drawn], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fixed_shape", [False, True])
@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.3}, {"top_k": 4, "top_p": 0.5}])
def test_greedy_rows_report_the_model_s_own_logprob_whatever_the_filters(options, fixed_shape):
    """Filters, also those of sampled neighbours, leave a greedy row's token and log-prob as they are without."""
    logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    mixed = evolve(rows(6, fixed_shape=fixed_shape, **options), greedy=np.arange(6) % 2 == 0)
    tokens, logprobs = sample(logits, mixed)
    assert torch.equal(tokens[::2], logits[::2].argmax(-1))
    torch.testing.assert_close(logprobs[::2], torch.log_softmax(logits[::2], -1).max(-1).values)


@given(npst.arrays(np.uint64, 20), npst.arrays(np.int64, 20, elements=st.integers(0, 2**62)))
def test_uniforms_of_arrays_are_those_of_tensors(keys, indices):
    """One stream, whatever computes it."""
    tensors = drawing.uniforms(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(indices))

    assert uniforms(keys, indices).tolist() == tensors.tolist()


def test_successive_draws_of_one_stream_are_spread_and_unrelated():
    """Uniforms along one stream have the moments of uniforms, and no correlation from one index to the next."""
    stream = uniforms(np.full(50_000, stream_key(1), dtype=np.uint64), np.arange(50_000))
    assert abs(stream.mean() - 0.5) < 0.005
    assert abs(stream.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(stream[1:], stream[:-1])[0, 1]) < 0.015
    assert (stream >= 0).all()
    assert (stream < 1).all()


def test_streams_of_near_seeds_are_unrelated():
    """Seeds 0, 1, 2, ... give unrelated first draws; negative and huge seeds are seeds too."""
    keys = np.array([stream_key(seed) for seed in range(50_000)], dtype=np.uint64)
    first = uniforms(keys, np.zeros(50_000, dtype=np.int64))
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.015
    assert len({stream_key(seed) for seed in (-1, 0, 2**63, 2**64 - 2)}) == 4


def test_a_request_without_a_seed_has_the_same_stream_in_every_process():
    """A run that is made again draws the same: what Python salts anew in each process has no part in a stream."""
    assert request_key(None, 1, "t/0/3", 7) == 3376611815723808220


matrices = npst.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(2, 40)), elements=st.floats(-8, 8, width=32), unique=True
)


@settings(max_examples=60, deadline=None)
@given(matrices, st.integers(0, 50), st.floats(0.05, 1.0), st.booleans())
def test_filters_keep_what_transformers_keeps(values, top_k, top_p, fixed_shape):
    """Top-k, then top-p: the same tokens survive as with transformers' processors, unless a sum is a rounding away."""
    logits = torch.from_numpy(values)
    ours = distribution_logits(logits, rows(len(values), top_k=top_k, top_p=top_p, fixed_shape=fixed_shape))

    theirs = TopKLogitsWarper(top_k)(None, logits) if top_k else logits
    cumulative = torch.softmax(theirs, -1).sort(-1).values.cumsum(-1)
    if top_p < 1.0 and bool(((cumulative - (1 - top_p)).abs() < 1e-5).any()):
        return
    theirs = TopPLogitsWarper(top_p)(None, theirs) if top_p < 1.0 else theirs
    torch.testing.assert_close(ours, theirs)


@settings(max_examples=40, deadline=None)
@given(matrices, st.floats(0.0, 1.0), st.integers(0, 50), st.booleans())
def test_min_p_keeps_what_transformers_keeps_and_comes_before_top_k(values, min_p, top_k, fixed_shape):
    """Unless a chance is a rounding away from its share of the likeliest."""
    logits = torch.from_numpy(values)
    ours = distribution_logits(logits, rows(len(values), min_p=min_p, top_k=top_k, fixed_shape=fixed_shape))

    chances = torch.softmax(logits, -1)
    near = (chances - min_p * chances.max(-1, keepdim=True).values).abs() < 1e-6
    if bool((near & (chances < chances.max(-1, keepdim=True).values)).any()):
        return
    theirs = MinPLogitsWarper(min_p)(None, logits)
    theirs = TopKLogitsWarper(top_k)(None, theirs) if top_k else theirs
    torch.testing.assert_close(ours, theirs)


@settings(max_examples=40, deadline=None)
@given(matrices, st.integers(0, 2**32), st.floats(0.05, 1.0))
def test_a_row_is_drawn_the_same_in_any_company(values, seed, top_p):
    """Each row alone gives the token it gives in the batch."""
    logits = torch.from_numpy(values)
    uniform = np.random.default_rng(seed).random(len(values))
    tokens, _ = sample(logits, rows(len(values), uniform=uniform, top_p=top_p))
    for row in range(len(values)):
        alone, _ = sample(logits[row : row + 1], rows(1, uniform=uniform[row : row + 1], top_p=top_p))
        assert alone.item() == tokens[row].item()


def test_a_token_without_probability_is_never_drawn():
    """Not at the ends of the unit interval either."""
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).repeat(3, 1)
    tokens, _ = sample(logits, rows(3, uniform=np.array([0.0, 0.5, 1 - 2**-53])))
    assert tokens.tolist() == [1, 3, 3]


def test_greedy_rows_take_the_best_token_and_report_the_models_own_distribution():
    """Temperature 0 is argmax; its log-prob is that of temperature 1."""
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    tokens, logprobs = sample(logits, rows(1, greedy=True))
    assert tokens.item() == 1
    assert logprobs.item() == pytest.approx(torch.log_softmax(logits, -1)[0, 1].item())
