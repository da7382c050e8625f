"""At most so many connections at a port at once: beyond, the kernel drops whoever comes until one is gone.

Knows: how connections of a listening ZeroMQ socket are counted, which has no limit of its own.
Does not know: who connects; whoever does not prove its key is hung up on by `channel`, which makes room again.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import sys
import threading

import zmq
from zmq.utils.monitor import recv_monitor_message

from areal_torch.newcomers import drop_newcomers, listening_sockets, take_newcomers

MAX_CONNECTIONS = 64
"""A worker has one client, with one connection; others are strangers, a controller that comes again, or a look."""


def bound_crowd(socket: zmq.Socket[bytes], port: int, limit: int = MAX_CONNECTIONS) -> threading.Thread | None:
    """Keep the connections of a socket listening at this port near a limit; return the thread that does, if on Linux.

    Near: there may be a few more, which the kernel took before it was told. The thread ends when the socket is closed;
    wait for that before the context is destroyed.
    """
    if not sys.platform.startswith("linux"):
        return None
    descriptors = [number for number in listening_sockets().values() if _port(number) == port]
    monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED)
    thread = threading.Thread(target=_watch, args=(monitor, descriptors, limit), name="areal-crowd", daemon=True)
    thread.start()
    return thread


def _watch(monitor: zmq.Socket[bytes], descriptors: list[int], limit: int) -> None:
    here: set[int] = set()
    full = False
    with contextlib.suppress(zmq.ZMQError):  # the context ends, and with it this thread
        while (event := recv_monitor_message(monitor))["event"] != zmq.EVENT_MONITOR_STOPPED:
            if event["event"] == zmq.EVENT_ACCEPTED:
                here.add(event["value"])
            else:
                here.discard(event["value"])
            if full != (len(here) >= limit):
                full = not full
                for descriptor in descriptors:
                    (drop_newcomers if full else take_newcomers)(descriptor)
    monitor.close(linger=0)


def _port(descriptor: int) -> int:
    with sockets.socket(fileno=os.dup(descriptor)) as line:
        return int(line.getsockname()[1])
