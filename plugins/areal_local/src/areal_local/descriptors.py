"""How many files and sockets a process may open, for one that listens where strangers can connect."""

from __future__ import annotations

import resource

_WANTED = 65_536
"""Strangers' connections are descriptors until they are hung up on."""


def make_room_for_strangers() -> None:
    """Raise this process's limit on descriptors, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
