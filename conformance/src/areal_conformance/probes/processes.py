"""Real processes in tests: who is alive, who is gone, and faults that are injected and healed.

Knows: process ids and signals of this machine.
Does not know: workers or schedulers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

import psutil

_LOOK_S = 0.02


def alive(pid: int) -> bool:
    """Tell whether a process runs or is stopped; one that is dead and merely not collected yet is not alive."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    """Return the ids of all living children of a process, and theirs; none if it is gone."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True) if alive(child.pid)]
    except psutil.NoSuchProcess:
        return []


def survivors(pids: Iterable[int], within_s: float) -> list[int]:
    """Wait until every process is gone, at most `within_s`; return those still alive, so [] is success."""
    deadline = time.monotonic() + within_s
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = [pid for pid in left if alive(pid)]
    return left


class _Signalled:
    """A fault: one process is sent a signal."""

    _number: signal.Signals

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fired = 0

    def inject(self) -> None:
        """Send it."""
        os.kill(self._pid, self._number)
        self._fired += 1

    def heal(self) -> None:
        """Do nothing: the dead stay dead."""

    def fired(self) -> int:
        """Return how often the fault took place."""
        return self._fired


class Kill(_Signalled):
    """SIGKILL, as the kernel's out-of-memory killer sends it. Cannot be healed."""

    _number = signal.SIGKILL


class Stop(_Signalled):
    """SIGSTOP: the process exists and does nothing, not even in its other threads. `heal` continues it."""

    _number = signal.SIGSTOP

    def heal(self) -> None:
        """Let it go on."""
        os.kill(self._pid, signal.SIGCONT)
