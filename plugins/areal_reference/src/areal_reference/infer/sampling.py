"""Draw one token per row for the whole batch at once.

Knows: distributions (penalties, temperature, min-p, top-k, top-p, forbidden tokens), a counter-based random stream
per request.
Does not know: requests, or what ends one.

The uniform behind a token is a hash of (request seed, index of the token in its output), so a draw does not
depend on who else is in the batch, and a continued request goes on where it was interrupted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor
from xxhash import xxh3_64_intdigest

from areal_torch import drawing


@frozen(kw_only=True, eq=False)
class RowSampling:
    """How each of R rows is drawn; arrays [R]. `temperature` is 1 where `greedy`.

    `forbidden_rows`, `forbidden_ids` list (row, token) pairs that must not be drawn. `seen_rows`, `seen_ids` list the
    pairs whose logit is penalised: made smaller by the factor `seen_scale`, then by `seen_minus`. `fixed_shape` keeps
    every intermediate the same shape whatever the rows ask for (deterministic mode).
    """

    greedy: NDArray[np.bool_]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    uniform: NDArray[np.float64]
    forbidden_rows: NDArray[np.int64]
    forbidden_ids: NDArray[np.int64]
    seen_rows: NDArray[np.int64]
    seen_ids: NDArray[np.int64]
    seen_scale: NDArray[np.float32]
    seen_minus: NDArray[np.float32]
    fixed_shape: bool = False


def stream_key(seed: int) -> int:
    """Return the 64-bit key of a request's random stream; near seeds give unrelated keys."""
    return xxh3_64_intdigest((seed % 2**64).to_bytes(8, "little"))


def request_key(seed: int | None, engine_seed: int, request_id: str, version: int) -> int:
    """Return the stream key of a request; without a seed it is made of engine seed, version and request id."""
    if seed is not None:
        return stream_key(seed)
    return xxh3_64_intdigest(f"{engine_seed}:{version}:{request_id}".encode())


def uniforms(keys: NDArray[np.uint64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return output number `indices` of streams `keys`, in [0, 1), float64 [R]: what `drawing.uniforms` gives tensors.

    Arrays of a hundred take a quarter of the time that tensors do.
    """
    x = keys + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(drawing.GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(drawing.MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(drawing.MIX_2)
    found: NDArray[np.float64] = ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return found


def sample(logits: Tensor, rows: RowSampling) -> tuple[Tensor, Tensor]:
    """Draw a token per row from logits [R, V].

    Log-probs are those of the distribution drawn from, after penalties, temperature and filters; for a greedy row
    they are of the penalised distribution at temperature 1, since the degenerate one would say 0.

    Returns:
        Token ids int64 [R] and their log-probs float32 [R], on the logits' device.
    """
    logprobs = torch.log_softmax(distribution_logits(logits, rows), -1)
    if rows.greedy.all():
        tokens = logprobs.argmax(-1)
    else:
        tokens = drawing.draw(logprobs.exp(), _on(logits.device, rows.uniform))
        if rows.greedy.any():
            tokens = torch.where(_on(logits.device, rows.greedy), logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def distribution_logits(logits: Tensor, rows: RowSampling) -> Tensor:
    """Return float32 logits after penalties, forbidden tokens, temperature, min-p, top-k and top-p, in that order.

    Greedy rows are not filtered: the best token always stays.
    """
    logits = logits.float()
    device = logits.device
    if rows.seen_rows.size:
        pairs = (_on(device, rows.seen_rows), _on(device, rows.seen_ids))
        seen, scale = logits[pairs], _on(device, rows.seen_scale)
        penalised = torch.where(seen > 0, seen / scale, seen * scale) - _on(device, rows.seen_minus)
        logits = logits.index_put(pairs, penalised)
    if rows.forbidden_rows.size:
        pairs = (_on(device, rows.forbidden_rows), _on(device, rows.forbidden_ids))
        logits = logits.index_put(pairs, torch.tensor(float("-inf"), device=device))
    if (rows.temperature != 1.0).any():
        logits = logits / _on(device, rows.temperature).unsqueeze(1)
    filtered = ((rows.top_k > 0) | (rows.top_p < 1.0) | (rows.min_p > 0.0)) & ~rows.greedy
    if not filtered.any():
        return logits
    top_k, top_p = np.where(rows.greedy, 0, rows.top_k), np.where(rows.greedy, 1.0, rows.top_p)
    min_p = np.where(rows.greedy, 0.0, rows.min_p)
    chosen = np.arange(len(filtered)) if rows.fixed_shape else np.flatnonzero(filtered)
    index = _on(device, chosen)
    kept = _filter(logits.index_select(0, index), min_p[chosen], top_k[chosen], top_p[chosen])
    return logits.index_copy(0, index, kept)


def _on(device: torch.device, array: NDArray[Any]) -> Tensor:  # Any: whatever dtype
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device)


def _filter(logits: Tensor, min_p: NDArray[np.float64], top_k: NDArray[np.int64], top_p: NDArray[np.float64]) -> Tensor:
    """Cut each row to what is near its best token, to its k best, then to the fewest that reach p. [R, V]."""
    ranked, order = logits.sort(stable=True, dim=-1, descending=True)
    width = logits.shape[1]
    if min_p.any():
        chances = torch.softmax(ranked, -1, dtype=torch.float64)
        rare = chances < chances[:, :1] * _on(logits.device, min_p).unsqueeze(1)
        ranked = ranked.masked_fill(rare, float("-inf"))
    num_kept = _on(logits.device, np.where(top_k > 0, top_k, width)).unsqueeze(1)
    ranked = ranked.masked_fill(torch.arange(width, device=logits.device) >= num_kept, float("-inf"))
    share = _on(logits.device, top_p).unsqueeze(1)
    probability = torch.softmax(ranked, -1, dtype=torch.float64)
    before = probability.cumsum(-1) - probability
    beyond = (before >= share) & (share < 1.0)
    beyond[:, 0] = False
    ranked = ranked.masked_fill(beyond, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ranked)
