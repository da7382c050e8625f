"""Distributions cut by filters, and tokens drawn from them by a counter-based stream per request.

Knows: probabilities, streams.
Does not know: requests, SGLang.
"""

from __future__ import annotations

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

_GOLDEN = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
_SIGN = 2**63


def keep_best(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return probs [R, V] without the unlikely, then cut to the k best, then to the fewest whose share reaches p.

    Each row of the answer sums to 1; the best token always stays. top_k, top_p, min_p: [R].
    """
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(probs.shape[1], device=probs.device)
    out = (place >= top_k.unsqueeze(1)) | (ranked < min_p.unsqueeze(1) * ranked[:, :1])
    out[:, 0] = False
    share = _shares(ranked.masked_fill(out, 0.0))
    limit = top_p.double().unsqueeze(1)
    out = (share.cumsum(-1) - share >= limit) & (limit < 1.0)
    out[:, 0] = False
    return torch.zeros_like(probs).scatter_(1, order, _shares(share.masked_fill(out, 0.0)).to(probs.dtype))


def _shares(weights: Tensor) -> Tensor:
    return weights.double() / weights.sum(-1, keepdim=True, dtype=torch.float64)


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return for each row of probs [R, V] the token at which the cumulated share passes uniform [R] in [0, 1).

    A row that is not finite gives some token: its log-prob is not finite either, which fails the request.
    """
    cumulated = probs.cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    target = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=probs.shape[1] - 1)


def uniforms(keys: Tensor, indices: Tensor) -> Tensor:
    """Return SplitMix64 output number `indices` of streams `keys`, both int64 [R], as float64 in [0, 1)."""
    x = keys + (indices.to(torch.int64) + 1) * _GOLDEN
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).to(torch.float64) * 2.0**-53


def stream_key(seed: int | None, engine_seed: int, request_id: str) -> int:
    """Return the key of a request's stream as a signed 64-bit number; near seeds give unrelated keys."""
    text = f"{engine_seed}:{request_id}" if seed is None else str(seed)
    digest = xxh3_64_intdigest(text.encode())
    return digest - 2 * _SIGN if digest >= _SIGN else digest


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right as if unsigned."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
