"""What the interpreter did while a block ran: what was unpickled, which sockets were bound.

Knows: the audit events of CPython.
Does not know: transports.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from attrs import Factory, define


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
