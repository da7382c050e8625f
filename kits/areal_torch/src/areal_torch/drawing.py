"""Random numbers by place, not by order: the number behind a token is a hash of (stream, place of the token).

So a draw depends neither on who else is in a batch nor on where a request was interrupted. The hash is SplitMix64.

Knows: streams, uniforms, tokens drawn from probabilities.
Does not know: requests, filters, or what an engine makes a stream's key of.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def splitmix64(key: int, index: int = 0) -> int:
    """Return output number `index` of the stream `key`, a number of 64 bits; near keys give unrelated streams."""
    x = (key + (index + 1) * GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * MIX_2) & _MASK
    return x ^ (x >> 31)


def uniforms(keys: Tensor, indices: Tensor) -> Tensor:
    """Return output number `indices` of streams `keys`, both int64 [R], as float64 in [0, 1)."""
    x = keys + (indices.to(torch.int64) + 1) * _signed(GOLDEN)
    x = (x ^ _shifted(x, 30)) * _signed(MIX_1)
    x = (x ^ _shifted(x, 27)) * _signed(MIX_2)
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).to(torch.float64) * 2.0**-53


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return for each row of probs [R, V] the token at which the cumulated share passes uniform [R] in [0, 1).

    Rows need not sum to 1. One that is not finite gives some token: its log-prob is not finite either.
    """
    cumulated = probs.cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    target = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=probs.shape[1] - 1)


def _signed(word: int) -> int:
    """Return a word of 64 bits as torch takes it."""
    return word - 2**64 if word >= 2**63 else word


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right as if unsigned."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
