"""A small sample of all combinations: first every value of every axis occurs in it, then every pair of values.

Knows: pairwise covering, greedily, the same for the same seed.
Does not know: what axes mean.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

Axes = Mapping[str, Sequence[str]]
_TRIES = 40


def covering(axes: Axes, *, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield combinations until every pair of values has occurred; the first few have every single value.

    Each is the one of many drawn at random that brings most that is new.
    """
    draw = random.Random(f"{seed} {sorted(axes)}")
    left = {frozenset({(axis, value)}) for axis, values in axes.items() for value in values}
    left |= {
        frozenset({(one, a), (other, b)})
        for one, other in combinations(axes, 2)
        for a in axes[one]
        for b in axes[other]
    }
    while left:
        rows = [{axis: draw.choice(list(values)) for axis, values in axes.items()} for _ in range(_TRIES)]
        fewest = min(map(len, left))
        needed = dict(draw.choice(sorted(sorted(part) for part in left if len(part) == fewest)))
        row = max(({**row, **needed} for row in rows), key=lambda row: _worth(row, left))
        left -= _parts(row)
        yield row


def _parts(row: Mapping[str, str]) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(some) for number in (1, 2) for some in combinations(row.items(), number)}


def _worth(row: Mapping[str, str], left: set[frozenset[tuple[str, str]]]) -> tuple[int, int]:
    new = _parts(row) & left
    single = sum(len(part) == 1 for part in new)
    return single, len(new)
