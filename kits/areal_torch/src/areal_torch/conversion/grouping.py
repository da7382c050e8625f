"""Tensors cut into files of bounded size.

Knows: sizes.
Does not know: formats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from areal_torch.conversion.format import TensorInfo

FILE_BYTES = 4 << 30


def size_of(info: TensorInfo) -> int:
    """Return the bytes of a tensor."""
    return math.prod(info.shape) * int(getattr(torch, info.dtype).itemsize)


def split(tensors: Sequence[TensorInfo], limit: int | None = None) -> list[list[str]]:
    """Return the names for each file, in order; a file has at least one tensor, and at most `limit` bytes if it can."""
    limit = FILE_BYTES if limit is None else limit
    groups: list[list[str]] = []
    size = 0
    for info in tensors:
        more = size_of(info)
        if not groups or size + more > limit:
            groups.append([])
            size = 0
        groups[-1].append(info.name)
        size += more
    return groups
