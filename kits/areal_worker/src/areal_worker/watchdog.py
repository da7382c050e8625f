"""No orphans: a small process that ends another one, and all it started, when either end of the chain breaks.

    pid = post(0)                        forked by a worker: kills its process group
    python watchdog.py COMMAND...        parent of a command, standard library only: ends its process group and strays

A worker's is a process because a thread would die with the worker, and would need its lock. The kernel kills the worker
itself when the controller dies (Linux); its watchdog then sees it gone. A command leads a process group of its own.
Ended are it and all it started: on SIGTERM asked first; killed when standard input closes (whoever holds the other
end is gone), when the parent changes, or a moment after the command itself ends.

Knows: one process group, a lifeline held open by whoever wants it alive, and (on Linux) who left the group: the kernel
hands a command's orphans to this process.
Does not know: what runs in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

LOOK_S = 0.1
_MAX_DESCRIPTORS = 4096
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STDIN = 0
_TIDY_S = 3.0


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when the thread that started it ends. Linux only; elsewhere nothing.

    `parent` is who that must be: this process ends now if it is another one, for it is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and sys.platform == "linux" and os.getppid() != parent:
        os._exit(1)


def post(lifeline: int) -> int:
    """Start the watchdog of this process, which must lead its own process group; return its process id.

    `lifeline` is a descriptor that reaches its end when the controller is gone; the watchdog
    keeps it, this process gets an empty one in its place.
    """
    worker = os.getpid()
    watchdog = os.fork()
    if watchdog == 0:
        _guard(worker, lifeline)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, lifeline)
    os.close(nothing)
    return watchdog


def dismiss(watchdog: int) -> None:
    """End the watchdog of a process that ends in good order, and leave no zombie."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(watchdog, signal.SIGKILL)
        os.waitpid(watchdog, 0)


def run(command: list[str]) -> None:
    """Run a command and make sure of its end; exit with its code, 128 + n if signal n ended it."""
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    die_with_me = partial(die_with_parent, os.getpid())  # which may have been ended before the command could say so
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_me)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _send(process.pid, signal.SIGTERM))
    try:
        _hold(_STDIN, lambda: process.poll() is None and os.getppid() == parent)
        if process.poll() is not None:
            _let_tidy(process.pid)
    finally:
        _send(process.pid, signal.SIGKILL)
    code = process.wait()
    _end_orphans()
    os._exit(code if code >= 0 else 128 - code)


def _guard(worker: int, lifeline: int) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if lifeline:  # an empty range closes everything in some versions of Python
            os.closerange(0, lifeline)
        os.closerange(lifeline + 1, _MAX_DESCRIPTORS)
        _hold(lifeline, lambda: os.getppid() == worker)
        os.killpg(worker, signal.SIGKILL)
    finally:
        os._exit(0)


def _hold(lifeline: int, intact: Callable[[], bool]) -> None:
    """Return once the chain broke: it is no longer `intact`, or the lifeline reached its end."""
    while intact():
        if select.select([lifeline], [], [], LOOK_S)[0] and not os.read(lifeline, 4096):
            return


def _send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _let_tidy(group: int) -> None:
    """Give what outlives the command a moment: Python's resource tracker frees shared memory only then."""
    deadline = time.monotonic() + _TIDY_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(LOOK_S / 10)


def _end_orphans() -> None:
    """Kill and collect those who left the group; the death of one may bring its children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    """Return the ids of this process's children; none where the system does not tell."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                children.append(int(status.parent.name))
    return children


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    run(sys.argv[1:])
