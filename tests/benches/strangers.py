"""Another user of this machine, who is really one: a child process that gave its rights away.

Knows: how root becomes `nobody`, and what a stranger tries at ports and Unix sockets.
Does not know: whose they are.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # `nobody` may not be able to read it later
import json
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

NOBODY = 65_534
_CONNECT_S = 0.5


def can_be_nobody() -> bool:
    """Tell whether this process may become another user."""
    return os.geteuid() == 0


def as_nobody(do: Callable[[], Any]) -> Any:
    """Return what a function finds as `nobody`, in a child process. Any: JSON.

    Raises:
        RuntimeError: it raised there.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        answer: dict[str, Any] = {"error": "the child ended early"}
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = {"value": do()}
        except BaseException as error:  # told to the parent, which raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            with os.fdopen(writing, "w") as pipe:
                json.dump(answer, pipe)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = json.loads(pipe.read() or '{"error": "the child died"}')
    os.waitpid(child, 0)
    if "error" in told:
        raise RuntimeError(told["error"])
    return told["value"]


def reached(places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the addresses and ports at which a connection is taken."""
    found = []
    for address, port in places:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=_CONNECT_S):
            found.append((address, port))
    return found


def entered(paths: Iterable[str]) -> list[str]:
    """Return the Unix sockets at which a connection is taken."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            found.append(path)
    return found


def named_sockets(pids: Iterable[int]) -> set[str]:
    """Return the Unix sockets with a name, in the file system or abstract ("@..."), that these processes listen at."""
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        accepts = int(words[3], 16) & 0x10000
        if len(words) == 8 and accepts and words[6] in inodes:
            found.add(words[7])
    return found


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError, psutil.Error):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
    return found
