"""What a process holds of the system, and what its interpreter did: ports, descriptors, what was unpickled and bound.

Knows: how to ask the system, and the audit events of CPython.
Does not know: what may be held.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from attrs import Factory, define

from areal_conformance.deadline import unwatched


def listening(pid: int | None = None) -> set[tuple[str, int]]:
    """Return the (address, port) pairs a process listens at; this process unless told otherwise.

    A process that is gone or not ours listens nowhere.
    """
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.Error:
        return set()
    return {(one.laddr.ip, one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN}


def unix_sockets(pid: int) -> set[Path]:
    """Return the paths of Unix sockets that a process is bound to; none if it is gone or not ours."""
    try:
        connections = psutil.Process(pid).net_connections("unix")
    except psutil.Error:
        return set()
    return {Path(str(one.laddr)) for one in connections if str(one.laddr).startswith("/")}


def num_descriptors(process: psutil.Process) -> int:
    """Return how many files and sockets a process has open; in this one, what deadlines read is not among them."""
    with unwatched():
        return int(process.num_fds())


def descriptors() -> frozenset[str]:
    """Return what this process has open, each as "number -> name"; what deadlines read is not among it."""
    own = Path("/proc/self/fd")
    if not own.is_dir():
        return frozenset(f"{number} -> " for number in range(num_descriptors(psutil.Process())))
    found = set()
    with unwatched():
        for entry in os.listdir(own):  # noqa: PTH208  the descriptor of the listing itself must be gone when we look
            with contextlib.suppress(OSError):
                found.add(f"{entry} -> {os.readlink(own / entry)}")  # noqa: PTH115  a descriptor, not a path
    return frozenset(found)


def pooled_threads() -> int:
    """Return how many threads of this process are the event loop's own pool.

    It makes them when it likes, more of them on a busy machine, so nobody's leak is measured by them.
    """
    return sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())


def memory_bytes(process: psutil.Process) -> int:
    """Return the memory of a process that only it can give back: pages of files are the system's, which takes them.

    Shared memory counts for everybody who has it.
    """
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return int(process.memory_info().rss)
    kilobytes = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE)
    return sum(map(int, kilobytes)) * 1024


@define
class Audit:
    """Events of one block."""

    unpickled: list[str] = Factory(list)
    bound: list[str] = Factory(list)
    """Addresses of sockets other than Unix ones."""


_installed = False
_listeners: list[Audit] = []
"""A hook cannot be removed: there is one, and it does nothing while nobody listens."""


def _hook(event: str, args: tuple[Any, ...]) -> None:  # Any: whatever each event carries
    if not _listeners:
        return
    if event == "pickle.find_class":
        for audit in _listeners:
            audit.unpickled.append(f"{args[0]}.{args[1]}")
    elif event == "socket.bind" and isinstance(args[1], tuple):
        for audit in _listeners:
            audit.bound.append(str(args[1][0]))


@contextlib.contextmanager
def audited() -> Iterator[Audit]:
    """Record the events of the block."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    audit = Audit()
    _listeners.append(audit)
    try:
        yield audit
    finally:
        _listeners[:] = [other for other in _listeners if other is not audit]
