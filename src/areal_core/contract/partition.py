"""Two ways to share numbers out: into few bins of bounded size, or into k parts of even size.

Knows: integers and positions in a list. All results are deterministic; ties go to the earlier position.
Does not know: tokens, groups or budgets (`areal_core.contract.balance`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Part = tuple[int, tuple[int, ...]]
"""The sum of a part and the positions in it."""


def first_fit_decreasing(sizes: Sequence[int], capacity: int, min_bins: int = 1) -> list[list[int]]:
    """Put each size, largest first, into the first bin with room; open a bin when there is none.

    Never uses more than 11/9 of the fewest possible bins plus one (Johnson), except that the first
    `min_bins` sizes open a bin each. The caller sees to it that no size exceeds the capacity.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for position in _largest_first(sizes):
        size = sizes[position]
        fitting = (number for number, free in enumerate(room) if size <= free)
        number = None if len(bins) < min_bins else next(fitting, None)
        if number is None:
            bins.append([position])
            room.append(capacity - size)
        else:
            bins[number].append(position)
            room[number] -= size
    return bins


def largest_differencing(sizes: Sequence[int], num_parts: int) -> list[list[int]]:
    """Cut into `num_parts` parts of nearly equal sum (Karmarkar and Karp, 1982); parts may be empty.

    Starts from one partial solution per size; again and again joins the two with the widest spread,
    the largest part of one with the smallest of the other. Empty parts are not stored.
    """
    solutions: list[tuple[Part, ...]] = [((sizes[position], (position,)),) for position in _largest_first(sizes)]
    heap = [(-_spread(solution, num_parts), age, solution) for age, solution in enumerate(solutions)]
    heapq.heapify(heap)
    age = len(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        joined = _join(first, second, num_parts)
        heapq.heappush(heap, (-_spread(joined, num_parts), age, joined))
        age += 1
    parts = [list(positions) for _, positions in heap[0][2]] if heap else []
    return parts + [[] for _ in range(num_parts - len(parts))]


def longest_first(sizes: Sequence[int], num_parts: int) -> list[list[int]]:
    """Give each size, largest first, to the part with the least so far (Graham's LPT); parts may be empty."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    heap = [(0, number) for number in range(num_parts)]
    for position in _largest_first(sizes):
        total, number = heap[0]
        parts[number].append(position)
        heapq.heapreplace(heap, (total + sizes[position], number))
    return parts


def _largest_first(sizes: Sequence[int]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda position: (-sizes[position], position))


def _spread(solution: tuple[Part, ...], num_parts: int) -> int:
    smallest = min(total for total, _ in solution) if len(solution) == num_parts else 0
    return max(total for total, _ in solution) - smallest


def _join(first: tuple[Part, ...], second: tuple[Part, ...], num_parts: int) -> tuple[Part, ...]:
    """Lay one solution's parts, largest first, against the other's, smallest first (empty ones smallest of all)."""
    descending = sorted(first, key=lambda part: (-part[0], part[1]))
    ascending = sorted(second)
    offset = num_parts - len(ascending)
    alone, paired = descending[:offset], descending[offset:]
    meeting = [(a[0] + b[0], tuple(sorted(a[1] + b[1]))) for a, b in zip(paired, ascending, strict=False)]
    return (*alone, *meeting, *ascending[len(paired) :])
