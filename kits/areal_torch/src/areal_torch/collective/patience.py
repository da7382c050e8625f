"""Connections of this process that give up on a peer which acknowledges nothing, though their owner has no handle.

A client of torch's store waits without a bound for the answer to what it asked; the kernel's own bound is a quarter of
an hour.

Knows: how Linux is told to end a connection. Elsewhere it does nothing.
Does not know: whose connections they are.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_MAPPED = "::ffff:"
"""IPv4 as IPv6 writes it."""


def give_up_after(timeout_s: float, address: str, port: int) -> None:
    """Have every connection to this peer end when it acknowledges nothing for so long."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None:
        return
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as line:
                if line.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host, number, *_ = line.getpeername()
                if (host.removeprefix(_MAPPED), number) == (address, port):
                    line.setsockopt(socket.IPPROTO_TCP, option, max(1, round(timeout_s * 1000)))
        except OSError:
            continue  # closed meanwhile, or not connected
