"""Which sequences go together: onto data-parallel ranks, or into minibatches, by their numbers of tokens.

Knows: lengths, and group ids whose rows must not be separated; parts of even size.
Does not know: what a row holds (`Batch.select` takes a part), or how many ranks exist elsewhere.

Every row appears exactly once in a plan. No number has to divide another. The same input gives the
same plan in every process: rows ascend within a part, parts are ordered by their first row.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence

from areal_core.contract.errors import BatchError

Part = tuple[int, tuple[int, ...]]
"""The sum of a part and the positions in it."""


def balance(lengths: Sequence[int], num_parts: int, groups: Sequence[Hashable] | None = None) -> list[list[int]]:
    """Share sequences out over `num_parts` ranks so that the largest token sum is small.

    Takes the better of Karmarkar-Karp and longest-first. With fewer rows (or groups) than parts
    the last parts are empty; a rank with nothing to do still takes part in every collective.

    Returns:
        Exactly `num_parts` lists of row numbers.

    Raises:
        BatchError: `num_parts` is below 1, or `groups` has another length.
    """
    if num_parts < 1:
        raise BatchError(f"cannot share rows over {num_parts} parts", why="there must be at least one")
    units = _units(len(lengths), groups)
    sizes = [sum(lengths[row] for row in unit) for unit in units]
    plans = (largest_differencing(sizes, num_parts), longest_first(sizes, num_parts))
    best = min(plans, key=lambda plan: max(sum(sizes[position] for position in part) for part in plan))
    rows = [sorted(row for position in part for row in units[position]) for part in best]
    return sorted(rows, key=lambda part: part[0] if part else len(lengths))


def _units(num_rows: int, groups: Sequence[Hashable] | None) -> list[list[int]]:
    if groups is None:
        return [[row] for row in range(num_rows)]
    if len(groups) != num_rows:
        raise BatchError(f"{len(groups)} group ids for {num_rows} sequences", why="each sequence needs one")
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    return list(members.values())


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
