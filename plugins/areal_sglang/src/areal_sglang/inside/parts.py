"""Whole tensors from the parts that ranks hold.

Knows: shapes.
Does not know: which layer cuts which way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def joined(ranks: Sequence[Mapping[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return every tensor in its whole shape, given each rank's part of it.

    Raises:
        ValueError: the parts do not make up the whole, or copies of a tensor differ.
    """
    return {name: _whole(name, [rank[name] for rank in ranks], shapes[name]) for name in ranks[0]}


def _whole(name: str, parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    cut = [dim for dim, size in enumerate(shape) if parts[0].shape[dim] != size]
    if not cut:
        return _one_of(name, parts)
    dim = cut[0]
    copies = max(1, sum(part.shape[dim] for part in parts) // shape[dim])  # of heads of keys, fewer than ranks
    each = [_one_of(name, parts[start : start + copies]) for start in range(0, len(parts), copies)]
    whole = torch.cat(each, dim)
    if tuple(whole.shape) != shape:
        raise ValueError(f"ranks hold {[list(part.shape) for part in parts]} of {name}, a tensor {list(shape)}")
    return whole


def _one_of(name: str, copies: Sequence[Tensor]) -> Tensor:
    if any(not torch.equal(copies[0], copy) for copy in copies[1:]):
        raise ValueError(f"ranks hold different bytes of {name}")
    return copies[0]
