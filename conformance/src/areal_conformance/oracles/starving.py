"""Threads that get next to nothing of a processor: what is done late must be done right all the same.

Knows: how Linux lets a thread run only while no other one wants its core.
Does not know: what the threads do, or who began them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")
_SWITCH_S = 1e-6


@contextmanager
def starving() -> Iterator[Callable[[], None]]:
    """Keep this thread, and those it begins in the block, to one core; all run as ever after it.

    Yields:
        What lets threads begun since run only while this one waits. It does nothing where threads have no priorities
        of their own.
    """
    if not (hasattr(os, "SCHED_IDLE") and _THREADS.is_dir()):
        yield lambda: None
        return
    cores, interval, before = os.sched_getaffinity(0), sys.getswitchinterval(), _threads()
    os.sched_setaffinity(0, {min(cores)})
    sys.setswitchinterval(_SWITCH_S)  # a new thread does not keep the interpreter until it is starved
    try:
        yield lambda: _schedule(_threads() - before, os.SCHED_IDLE)
    finally:
        sys.setswitchinterval(interval)
        os.sched_setaffinity(0, cores)
        for thread in _threads() - before:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        _schedule(_threads() - before, os.SCHED_OTHER)


def _threads() -> set[int]:
    return {int(entry.name) for entry in _THREADS.iterdir()}


def _schedule(threads: set[int], policy: int) -> None:
    for thread in threads:
        with suppress(ProcessLookupError, PermissionError):  # it ended, or this system forbids it
            os.sched_setscheduler(thread, policy, os.sched_param(0))
