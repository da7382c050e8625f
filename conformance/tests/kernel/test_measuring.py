"""Memory that something adds: what it holds at most, not what was there before, whoever went first."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import torch

from areal_conformance.benches.measuring import awaited_grown_in_turns

MEGABYTE = 1_000_000


TURNS = """
import torch
from areal_conformance.benches.measuring import grown_in_turns
there = torch.ones(200_000_000, dtype=torch.uint8)
lives = {size: lambda size=size: int(torch.ones(size, dtype=torch.uint8)[0]) for size in (120_000_000, 40_000_000)}
print(*grown_in_turns("cpu", lives).values(), int(there[0]))
"""
"""In a process of its own: what other tests let go meanwhile would count against it."""


def test_what_is_added_is_told_and_not_what_was_there() -> None:
    """The one that goes second does not use up what the first has let go."""
    run = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, timeout=120, check=True)
    large, small, _ = map(float, run.stdout.split())

    assert 110 * MEGABYTE < large < 150 * MEGABYTE
    assert 35 * MEGABYTE < small < 70 * MEGABYTE


def test_what_stays_from_the_first_use_belongs_to_nobody() -> None:
    """Libraries keep things; the first turn does not count, also of coroutine functions."""
    kept: list[torch.Tensor] = []

    async def keeps() -> None:
        if not kept:
            kept.append(torch.ones(150 * MEGABYTE, dtype=torch.uint8))

    assert asyncio.run(awaited_grown_in_turns("cpu", {"keeps": keeps}))["keeps"] < 30 * MEGABYTE
