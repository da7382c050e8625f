"""No orphans: a small process that ends a worker, and all it started, when either end of the chain breaks.

Knows: the worker's process group, its standard input (held open by the controller) and its parent.
Does not know: what the worker does.

The kernel kills the worker itself when the controller dies (Linux); the warden then sees the worker gone and kills
the rest of its group. It is a process because a thread of the worker would die with it, and would need its lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

LOOK_S = 0.1
_MAX_DESCRIPTORS = 4096
_PR_SET_PDEATHSIG = 1


def read_line(descriptor: int) -> bytes:
    """Return one line without reading beyond it; what ends early ends the line."""
    line = bytearray()
    while not line.endswith(b"\n"):
        octet = os.read(descriptor, 1)
        if not octet:
            break
        line += octet
    return bytes(line)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends. Linux only; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def post(lifeline: int) -> int:
    """Start the warden of this process, which must lead its own process group; return its process id.

    `lifeline` is a descriptor that reaches its end when the controller is gone; the warden
    keeps it, this process gets an empty one in its place.
    """
    worker = os.getpid()
    warden = os.fork()
    if warden == 0:
        _guard(worker, lifeline)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, lifeline)
    os.close(nothing)
    return warden


def dismiss(warden: int) -> None:
    """End the warden of a process that ends in good order, and leave no zombie."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(warden, signal.SIGKILL)
        os.waitpid(warden, 0)


def _guard(worker: int, lifeline: int) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if lifeline:  # an empty range closes everything in some versions of Python
            os.closerange(0, lifeline)
        os.closerange(lifeline + 1, _MAX_DESCRIPTORS)
        while os.getppid() == worker:
            if select.select([lifeline], [], [], LOOK_S)[0] and not os.read(lifeline, 4096):
                break
        os.killpg(worker, signal.SIGKILL)
    finally:
        os._exit(0)
