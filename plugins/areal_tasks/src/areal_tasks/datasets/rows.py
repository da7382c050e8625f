"""Rows made on demand.

Knows: how to be a sequence, given a size and a function from row number to row.
Does not know: what a row holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

Row = Mapping[str, Any]  # Any: the data set decides what a row holds


class LazyRows(Sequence[Row]):
    """A data set whose row i is `make(i)`, made when asked for and not kept.

    `make` is called with 0 <= i < size and gives the same row every time.
    """

    def __init__(self, size: int, make: Callable[[int], Row]) -> None:
        self._numbers = range(size)
        self._make = make

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> LazyRows: ...

    def __getitem__(self, index: int | slice) -> Row | LazyRows:
        if isinstance(index, slice):
            chosen = self._numbers[index]
            return LazyRows(len(chosen), lambda number: self._make(chosen[number]))
        return self._make(self._numbers[index])
