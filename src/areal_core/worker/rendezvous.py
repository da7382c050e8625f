"""Where the ranks of one role meet: an address nobody else listens on, chosen by rank 0's own process.

Knows: free TCP ports and addresses of the machine it runs on.
Does not know: process groups; the engines make them.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from areal_core.contract.errors import ResourceError

_BELOW_EPHEMERAL = range(15_000, 32_000)
"""Kernels give outgoing connections ports from 32768 up, so a port chosen here is not taken between choice and use."""
_given: set[int] = set()  # a port handed out is not handed out again, though its rank may not have bound it yet


def init_method(host: str) -> str:
    """Return `tcp://host:port` with a port that is free on this machine, for `RankContext.init_method`.

    Raises:
        ResourceError: no port is free.
    """
    return f"tcp://{f'[{host}]' if ':' in host else host}:{free_port(host)}"


def is_here(host: str) -> bool:
    """Tell whether an address is one of this machine's (of this network namespace)."""
    return _can_bind(host, 0)


def address_towards(host: str) -> str:
    """Return the address of this machine that one at `host` reaches it at. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def free_port(
    host: str = "127.0.0.1",
    *,
    candidates: Iterable[int] | None = None,
    is_free: Callable[[str, int], bool] | None = None,
) -> int:
    """Return a port that can be bound, never the same one twice in a process.

    Args:
        candidates: ports to try, in order; by default a random sample below the ephemeral range.
        is_free: tells whether a port can be bound; by default by binding it.

    Raises:
        ResourceError: every candidate is taken.
    """
    tried = list(secrets.SystemRandom().sample(_BELOW_EPHEMERAL, 100) if candidates is None else candidates)
    for port in tried:
        if port not in _given and (is_free or _can_bind)(host, port):
            _given.add(port)
            return port
    raise ResourceError(
        f"none of {len(tried)} ports of {host} is free", why="every one tried is in use", fix="check: ss -ltn"
    )


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, port))
        return True
    return False
