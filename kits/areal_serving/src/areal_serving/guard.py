"""Runs a command and makes sure of its end: `python guard.py COMMAND...`, standard library only.

The command leads a process group of its own. Ended are it and all it started: on SIGTERM asked first, and
killed at once when standard input closes (whoever holds the other end is gone) or when the parent changes, a
moment after the command itself ends.

Knows: one process group, and (on Linux) whoever left it: the kernel hands orphans to this process.
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
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.1
_STDIN = 0
_TIDY_S = 3.0


def main() -> None:
    """Run the command in the arguments; exit with its code, 128 + n if signal n ended it."""
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _send(process.pid, signal.SIGTERM))
    try:
        while process.poll() is None and os.getppid() == parent:
            if select.select([_STDIN], [], [], _LOOK_S)[0] and not os.read(_STDIN, 4096):
                break
        if process.poll() is not None:
            _let_tidy(process.pid)
    finally:
        _send(process.pid, signal.SIGKILL)
    code = process.wait()
    _end_orphans()
    os._exit(code if code >= 0 else 128 - code)


def _send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _let_tidy(group: int) -> None:
    """Give what outlives the command a moment: Python's resource tracker frees shared memory only then."""
    deadline = time.monotonic() + _TIDY_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(_LOOK_S / 10)


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


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
