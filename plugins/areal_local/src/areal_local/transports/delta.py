"""What changed of a tensor since the version before, as bytes: where, and the new elements.

    elements, width of a gap, long gaps: int64 each | the long gaps: int64 each | new elements | gaps

A gap counts the unchanged elements before a changed one, in one byte or two. One that does not fit stands among the
long gaps, and the largest number in its place. Elements are compared and kept as integers of their size: -0.0 and the
payload of a NaN are bits like any others.

Knows: two states of one tensor, and the bytes between them.
Does not know: which versions they are of, or whether the other side has the first of them (`delta_base`).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError

_UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_HEAD = 3 * 8
_BLOCK = 1 << 20
"""Elements compared at once: what says which of them differ stays in the cache."""


def encode(before: Tensor, after: Tensor, itemsize: int) -> Tensor:
    """Return the difference of two states, uint8 [num_bytes] each; nothing where they are equal.

    Where a difference would not be smaller, `after` itself is returned.
    """
    old, new = before.view(_unit(itemsize)), after.view(_unit(itemsize))
    found = [
        (ours != theirs).nonzero().reshape(-1) + number * _BLOCK
        for number, (ours, theirs) in enumerate(zip(torch.split(old, _BLOCK), torch.split(new, _BLOCK), strict=True))
    ]
    places = torch.cat(found) if found else torch.empty(0, dtype=torch.int64)
    count = len(places)
    if not count:
        return after[:0]
    if _HEAD + count * (new.itemsize + 1) >= after.numel():
        return after
    gaps = torch.diff(places, prepend=places.new_tensor([-1])) - 1
    width = 1 if 8 * int((gaps >= _most(1)).sum()) < count else 2
    is_long = gaps >= _most(width)
    long = gaps[is_long]
    gaps[is_long] = _most(width)
    head = torch.tensor([count, width, len(long)])
    parts = (head, long, new[places], gaps.to(_UNITS[width]))
    encoded = torch.cat([part.view(torch.uint8) for part in parts])
    return encoded if encoded.numel() < after.numel() else after


def apply(state: Tensor, difference: Tensor, itemsize: int) -> None:
    """Bring a state, uint8 [num_bytes], to what `encode` was given as `after`.

    Raises:
        WeightSyncError: the bytes are no difference of such a tensor; the state is as it was.
    """
    if not difference.numel():
        return
    elements = state.view(_unit(itemsize))
    if difference.numel() < _HEAD:
        raise _no_difference(f"it is {difference.numel()} bytes")
    count, width, num_long = _read(difference, 0, 3, torch.int64).tolist()
    ends = [_HEAD, 8 * num_long, elements.itemsize * count, width * count]
    if width not in (1, 2) or not (0 <= num_long <= count and 1 <= count <= len(elements)):
        raise _no_difference(f"{count} elements with {num_long} long gaps, of {len(elements)} elements")
    if sum(ends) != difference.numel():
        raise _no_difference(f"it is {difference.numel()} bytes, and speaks of {sum(ends)}")
    at_long, at_values, at_gaps, _ = itertools.accumulate(ends)
    long = _read(difference, at_long, num_long, torch.int64)
    values = _read(difference, at_values, count, elements.dtype)
    gaps = _read(difference, at_gaps, count, _UNITS[width]).to(torch.int64) & _most(width)
    is_long = gaps == _most(width)
    if int(is_long.sum()) != num_long or (num_long and not 0 <= int(long.min()) <= int(long.max()) < len(elements)):
        raise _no_difference("its long gaps are not those it speaks of")
    gaps[is_long] = long
    places = (gaps + 1).cumsum(0) - 1
    if int(places[-1]) >= len(elements):
        raise _no_difference(f"it ends at element {int(places[-1])} of {len(elements)}")
    elements[places] = values


def _unit(itemsize: int) -> torch.dtype:
    """Return the integers that elements of a size are taken for; larger ones are several."""
    return _UNITS.get(itemsize, torch.int64)


def _most(width: int) -> int:
    return int(256**width - 1)


def _read(data: Tensor, start: int, count: int, dtype: torch.dtype) -> Tensor:
    # A copy: what is read in place has to lie at a multiple of its size.
    return data[start : start + count * dtype.itemsize].clone().view(dtype)


def _no_difference(why: str) -> WeightSyncError:
    return WeightSyncError("a difference of weights makes no sense", why=why)
