"""Memory that something adds: what it holds at most, not what was there before, whoever went first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import torch

from areal_conformance.benches.measuring import awaited_grown_in_turns, grown_in_turns

MEGABYTE = 1_000_000


def holding(megabytes: int) -> Callable[[], object]:
    """Return a life that holds so much and lets it go."""
    return lambda: int(torch.ones(megabytes * MEGABYTE, dtype=torch.uint8)[0])


def test_what_is_added_is_told_and_not_what_was_there() -> None:
    """The one that goes second does not use up what the first has let go."""
    there = torch.ones(200 * MEGABYTE, dtype=torch.uint8)
    grown = grown_in_turns("cpu", {"large": holding(120), "small": holding(40)})

    assert int(there[0]) == 1
    assert 110 * MEGABYTE < grown["large"] < 150 * MEGABYTE
    assert 35 * MEGABYTE < grown["small"] < 70 * MEGABYTE


def test_what_stays_from_the_first_use_belongs_to_nobody() -> None:
    """Libraries keep things; the first turn does not count, also of coroutine functions."""
    kept: list[torch.Tensor] = []

    async def keeps() -> None:
        if not kept:
            kept.append(torch.ones(150 * MEGABYTE, dtype=torch.uint8))

    assert asyncio.run(awaited_grown_in_turns("cpu", {"keeps": keeps}))["keeps"] < 30 * MEGABYTE
