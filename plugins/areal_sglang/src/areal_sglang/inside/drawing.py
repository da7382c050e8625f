"""Distributions cut by filters, and the stream a request draws from.

Knows: probabilities, keys of streams.
Does not know: requests, SGLang; how a token is drawn (`areal_torch.drawing`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

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


def stream_key(seed: int | None, engine_seed: int, request_id: str) -> int:
    """Return the key of a request's stream as a signed 64-bit number; near seeds give unrelated keys."""
    text = f"{engine_seed}:{request_id}" if seed is None else str(seed)
    digest = xxh3_64_intdigest(text.encode())
    return digest - 2 * _SIGN if digest >= _SIGN else digest
