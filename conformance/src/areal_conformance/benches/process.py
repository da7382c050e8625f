"""What a process holds of the system: where it listens, and threads that nobody has to answer for.

Knows: how to ask the system.
Does not know: what may be held.
"""

from __future__ import annotations

import threading

import psutil


def listening(pid: int | None = None) -> set[tuple[str, int]]:
    """Return the (address, port) pairs a process listens at; this process unless told otherwise.

    A process that is gone or not ours listens nowhere.
    """
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.Error:
        return set()
    return {(one.laddr.ip, one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN}


def pooled_threads() -> int:
    """Return how many threads of this process are the event loop's own pool.

    It makes them when it likes, more of them on a busy machine, so nobody's leak is measured by them.
    """
    return sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())
