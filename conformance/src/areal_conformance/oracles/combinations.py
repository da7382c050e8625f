"""Combinations: few rows of settings in which every two values of two settings meet.

    pairwise({"tied": (True, False), "temperature": (1.0, 0.6), "layout": ("d2", "p2", "c2")})

Most faults that need a combination need two settings. Knows: how to cover all pairs with few rows, the same ones every
time. Does not know: what the settings mean.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

TRIES = 60
"""Rows drawn for each that is taken: the one that brings most pairs together."""

Settings = dict[str, Any]
"""A value of every setting. Any: whatever they are."""


def pairwise(settings: Mapping[str, Sequence[Any]], seed: int = 0) -> list[Settings]:
    """Return rows in which every pair of values of two settings occurs. Any: values of whatever type."""
    drawn = random.Random(seed)
    sizes = {name: range(len(values)) for name, values in settings.items()}
    missing = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(sizes, 2)
        for a, b in itertools.product(sizes[one], sizes[other])
    }
    rows = []
    while missing:
        wanted = dict(min(missing))
        candidates = [{n: wanted.get(n, drawn.choice(places)) for n, places in sizes.items()} for _ in range(TRIES)]
        best = max(candidates, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        rows.append({name: settings[name][place] for name, place in best.items()})
    return rows


def _pairs(row: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    """Return every pair of a row, as places of values."""
    return set(itertools.combinations(row.items(), 2))


def told(row: Settings) -> str:
    """Return a row in words."""
    return ", ".join(f"{name} {value}" for name, value in row.items())
