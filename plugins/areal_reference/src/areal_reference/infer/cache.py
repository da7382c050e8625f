"""The key-value cache: per layer one slab of rows, one row per running request.

Knows: how rows and lengths grow, move and are cleared; how many bytes that takes.
Does not know: what is in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_reference.infer.attention import LayerShape

FIRST_ROWS = 8
FIRST_LENGTH = 64


def grown(current: int, needed: int, limit: int) -> int:
    """Return `current` doubled until it holds `needed`, but not beyond `limit` unless needed."""
    size = current
    while size < needed:
        size *= 2
    return max(needed, current, min(size, limit))


class CacheSlab:
    """Keys and values, per layer [rows + 1, K, length, D]; the last row is scratch for padding.

    Both axes double when they must, and shrink only when the engine sleeps, so memory is flat once the load is.
    Inference mode throughout: torch forbids mixing its tensors with others in place.
    """

    def __init__(
        self, layers: Sequence[LayerShape], *, max_rows: int, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = tuple(layers)
        self.max_rows, self.max_length = max_rows, max_length
        self._dtype, self._device = dtype, device
        self.shrink()

    @torch.inference_mode()
    def shrink(self) -> None:
        """Forget everything and take as little memory as at the beginning."""
        self.num_rows = min(FIRST_ROWS, self.max_rows)
        self.length = min(FIRST_LENGTH, self.max_length)
        self.keys = [self._empty(layer.num_heads, layer.key_dim) for layer in self.layers]
        self.values = [self._empty(layer.num_heads, layer.value_dim) for layer in self.layers]

    def _empty(self, num_heads: int, dim: int) -> Tensor:
        return torch.zeros(self.num_rows + 1, num_heads, self.length, dim, dtype=self._dtype, device=self._device)

    @property
    def scratch(self) -> int:
        """Return the row that padding may write to."""
        return self.num_rows

    @property
    def num_bytes(self) -> int:
        """Return the bytes allocated."""
        return sum(slab.nbytes for slab in (*self.keys, *self.values))

    def bytes_for(self, num_rows: int, length: int) -> int:
        """Return the bytes the slab would take after growing to hold `num_rows` of `length` tokens."""
        rows = grown(self.num_rows, num_rows, self.max_rows) + 1
        tokens = grown(self.length, length, self.max_length)
        per_token = sum(layer.num_heads * (layer.key_dim + layer.value_dim) for layer in self.layers)
        return rows * tokens * per_token * self._dtype.itemsize

    @torch.inference_mode()
    def grow(self, num_rows: int, length: int) -> None:
        """Make room for `num_rows` rows of `length` tokens, keeping what is there."""
        if num_rows <= self.num_rows and length <= self.length:
            return
        old_rows, old_length = self.num_rows, self.length
        self.num_rows = grown(old_rows, num_rows, self.max_rows)
        self.length = grown(old_length, length, self.max_length)
        for slabs in (self.keys, self.values):
            for index, old in enumerate(slabs):
                slabs[index] = self._empty(old.shape[1], old.shape[3])
                slabs[index][:old_rows, :, :old_length] = old[:old_rows]

    @torch.inference_mode()
    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of rows `source` into rows `target`."""
        source_index = torch.tensor(source, device=self._device)
        target_index = torch.tensor(target, device=self._device)
        for slab in (*self.keys, *self.values):
            prefix = slab[:, :, :length]
            prefix.index_copy_(0, target_index, prefix.index_select(0, source_index))

    @torch.inference_mode()
    def clear(self, rows: Sequence[int]) -> None:
        """Zero rows: a masked entry counts as 0 times its value, which must therefore be finite."""
        index = torch.tensor(rows, device=self._device)
        for slab in (*self.keys, *self.values):
            slab.index_fill_(0, index, 0.0)
