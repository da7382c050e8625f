"""Shared memory that mutants leave: named after the process that made it, so that it can be removed after a kill.

Knows: the names.
Does not know: which mutants leave any.
"""

from __future__ import annotations

import os
import secrets
from multiprocessing import shared_memory
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")
_PREFIX = "areal-proof"


def leave(size: int = 4096) -> shared_memory.SharedMemory:
    """Make a named piece of shared memory: `areal-proof-<pid>-<its start>-<random>`."""
    name = f"{_PREFIX}-{os.getpid()}-{_start(os.getpid())}-{secrets.token_hex(4)}"
    return shared_memory.SharedMemory(name=name, create=True, size=size)


def sweep() -> list[str]:
    """Remove the pieces whose makers are gone; Python's own tracker is killed with them. Return their names."""
    removed: list[str] = []
    for path in SHARED.glob(f"{_PREFIX}-*-*-*"):
        pid, start = path.name.removeprefix(f"{_PREFIX}-").split("-")[:2]
        if pid.isdecimal() and start.isdecimal() and _start(int(pid)) != int(start):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def _start(pid: int) -> int:
    """Return when a process began, in hundredths of a second; -1 if there is none. A number is given out again."""
    try:
        process = psutil.Process(pid)
        return -1 if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time() * 100)
    except psutil.NoSuchProcess:
        return -1
