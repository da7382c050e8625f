"""Whether the machine is idle: a figure that other work disturbed is none.

Knows: how many cores everybody else keeps busy, stolen time included.
Does not know: what is measured.
"""

from __future__ import annotations

import os
import sys

import psutil

LIMIT = 0.1
"""Cores that others may keep busy: the machine's own housekeeping."""
WATCH_S = 3.0
_ASKED = "AREAL_BENCH_BUSY_CORES"
"""What was found at the start, for the processes that a benchmark starts: they do not look again."""


def busy_at_start() -> float | None:
    """Return how many cores others kept busy when this benchmark began; None if nobody looked."""
    found = os.environ.get(_ASKED)
    return None if found is None else float(found)


def busy_at_end() -> float | None:
    """Return how many cores are busy now that a benchmark has ended; None if nobody looked when it began."""
    return None if busy_at_start() is None else round(look(), 2)


def look() -> float:
    """Watch the machine for `WATCH_S` and return how many cores are busy."""
    seen = psutil.cpu_times_percent(interval=WATCH_S)
    working = 100.0 - seen.idle - getattr(seen, "iowait", 0.0)
    return working / 100.0 * (psutil.cpu_count() or 1)


def refuse_if_busy(*, anyway: bool) -> None:
    """End with a message if other work is going on, unless it is wanted anyway: then the result says so."""
    if busy_at_start() is not None:
        return  # a process of a benchmark that has looked
    busy = look()
    os.environ[_ASKED] = f"{busy:.2f}"
    if busy > LIMIT and not anyway:
        sys.exit(
            f"the machine is not idle: other work keeps {busy:.2f} cores busy, at most {LIMIT} may be\n"
            "why: ratios would tell what else runs, not what is measured\n"
            "fix: wait until it ends, or pass --busy to measure anyway; the result says how busy it was"
        )


def unseen() -> dict[str, str]:
    """Return this process's environment for a benchmark that has to look for itself."""
    return {name: value for name, value in os.environ.items() if name != _ASKED}
