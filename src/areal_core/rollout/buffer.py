"""Finished groups between rollout and training: each goes in once and comes out once.

Knows: items by index, a bound.
Does not know: which of them make a batch (`staleness`), or what an item is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Buffer(Generic[Item]):
    """Hold finished items until they are taken. The gate decides what comes in and out."""

    def __init__(self, capacity: int) -> None:
        """Hold at most `capacity` items."""
        self.capacity = capacity
        self._items: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, index: int, item: Item) -> None:
        """Take one item in. A second one of the same index, or one too many, is a bug of ours."""
        assert index not in self._items, f"group {index} finished twice"
        assert len(self._items) < self.capacity, f"more than {self.capacity} finished groups"
        self._items[index] = item

    def take(self, indices: Iterable[int]) -> list[Item]:
        """Give items away, in the order asked for; each can be taken once."""
        return [self._items.pop(index) for index in indices]
