"""Runs a command and makes sure of its end: `python guard.py COMMAND...`, standard library only.

The command leads a process group of its own. Ended are it and all it started: on SIGTERM asked first, and
killed at once when standard input closes (whoever holds the other end is gone) or when the command itself ends.

Knows: one process group.
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

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.1
_STDIN = 0


def main() -> None:
    """Run the command in the arguments; exit with its code, 128 + n if signal n ended it."""
    process = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _send(process.pid, signal.SIGTERM))
    try:
        while process.poll() is None:
            if select.select([_STDIN], [], [], _LOOK_S)[0] and not os.read(_STDIN, 4096):
                break
    finally:
        _send(process.pid, signal.SIGKILL)
    code = process.wait()
    os._exit(code if code >= 0 else 128 - code)


def _send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
