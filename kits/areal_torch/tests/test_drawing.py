"""Streams are the same on every device and in plain Python; draws follow the shares."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_torch.drawing import draw, splitmix64, uniforms

SHARES = torch.tensor([[0.5, 0.3, 0.15, 0.05]])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_tensors_and_integers_give_one_stream(key: int, index: int) -> None:
    """Engines that draw row by row and those that draw a batch at once agree to the bit."""
    expected = (splitmix64(key, index) >> 11) * 2.0**-53

    assert uniforms(torch.tensor([key]), torch.tensor([index])).item() == expected


def test_a_stream_is_splitmix64() -> None:
    """The number behind a token is the same one on every device."""
    assert round(uniforms(torch.tensor([5]), torch.tensor([7])).item(), 8) == 0.51110149


def test_draws_follow_the_shares() -> None:
    """A hundred thousand draws."""
    count = 100_000
    uniform = uniforms(torch.full((count,), 1), torch.arange(count))
    often = torch.bincount(draw(SHARES.expand(count, 4), uniform), minlength=4) / count

    assert torch.allclose(often, SHARES[0], atol=0.01)


def test_no_draw_is_of_a_token_that_is_out() -> None:
    """Also at both ends of [0, 1)."""
    row = torch.tensor([[0.0, 0.4, 0.0, 0.6, 0.0]]).expand(3, 5)

    assert draw(row, torch.tensor([0.0, 0.399999, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 1, 3]


def test_a_row_that_is_not_finite_gives_a_token_there_is() -> None:
    """An index beyond the vocabulary ended the whole server, and the other requests with it."""
    rows = torch.tensor([[math.nan] * 4, [0.25] * 4, [math.inf, 0.0, 0.0, 0.0]])

    tokens = draw(rows, torch.full((3,), 0.9, dtype=torch.float64))

    assert ((tokens >= 0) & (tokens < 4)).all()
    assert tokens[1] == 3
