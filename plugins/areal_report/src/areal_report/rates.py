"""Rates of a run over a window of steps: tokens a second, shares of time.

    per second = (count at the end - count at the beginning) / seconds between them

Knows: by which clock each count is kept. The fleet is read once a second beside the loop, so what it did is divided by
the seconds between readings (`infer_wall_s`): over the seconds of the steps it would jump between 0 and 100%.
Does not know: what the counts mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]  # Any: numbers, and small mappings of numbers

STEPS, SECONDS = 10, 5.0
"""A window is the shortest with both."""
OF_FLEET = frozenset({"infer_busy_s", "tokens_generated"})
START: Record = {"step": 0}
"""Before the first step; every count is 0 there."""


def rate(earlier: Record, later: Record, count: str) -> float | None:
    """Return how much a count grew per second between two records; None if no time passed or it began anew."""
    clock = _clock(later, count)
    seconds, grown = (float(later.get(name, 0.0) - earlier.get(name, 0.0)) for name in (clock, count))
    return grown / seconds if count in later and seconds > 0 and grown >= 0 else None


def idle_share(earlier: Record, later: Record, busy: str) -> float | None:
    """Return the share of the time between two records in which nothing was computed; None if no time passed."""
    share = rate(earlier, later, busy)
    return None if share is None else min(1.0, max(0.0, 1.0 - share))


def window(records: Sequence[Record], end: int, count: str) -> Record:
    """Return the record in which the window ends that `records[end]` closes; the start of the run if it is younger."""
    last, clock = records[end], _clock(records[end], count)
    for record in reversed(records[:end] if end >= 0 else records[: len(records) + end]):
        if last["step"] - record["step"] >= STEPS and last.get(clock, 0.0) - record.get(clock, 0.0) >= SECONDS:
            return record
    return START if records[0]["step"] <= 1 else records[0]


def _clock(record: Record, count: str) -> str:
    return "infer_wall_s" if count in OF_FLEET and "infer_wall_s" in record else "wall_s"
