"""Ports at which nobody may connect any more: those that gloo leaves open after the ranks of a group have met.

Knows: how Linux is told to drop what arrives at a listening socket; connections that are there go on.
Does not know: gloo, whose listening sockets have no handle: they are those opened while a group was made. It imports
no torch.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""Of linux/socket.h; Python has no names for them."""
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter of one instruction that keeps no byte of any packet."""
_one_at_a_time = threading.Lock()


@contextmanager
def no_newcomers() -> Iterator[None]:
    """Let nobody connect to sockets that this block made and left listening.

    For making process groups: a rank returns from that when all its peers are connected. Gloo takes every connection
    and never lets go of it, so a stranger could use up the descriptors of the process. Does nothing where groups
    connect later (`TORCH_GLOO_LAZY_INIT`), or on a system other than Linux.
    """
    if not _can_be_shut():
        yield
        return
    before = _sockets()
    yield
    for descriptor in listening_sockets(but=before).values():
        drop_newcomers(descriptor)


@contextmanager
def left_listening() -> Iterator[list[int]]:
    """Fill a list with the descriptors of the sockets this block makes and leaves listening, of those that can be shut.

    For a process with several ends of groups, in threads: there is one such block at a time, so keep it short.
    """
    found: list[int] = []
    if not _can_be_shut():
        yield found
        return
    with _one_at_a_time:
        before = _sockets()
        yield found
        found += listening_sockets(but=before).values()


def _can_be_shut() -> bool:
    lazy = os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("1", "true", "yes", "on", "y", "t")
    return not lazy and sys.platform.startswith("linux")


def listening_sockets(*, but: Container[int] = ()) -> dict[int, int]:
    """Return the internet sockets this process listens at, but for some: inode -> descriptor. Linux only."""
    found = {}
    for inode, descriptor in _sockets().items():
        if inode in but:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:  # closed meanwhile
            internet = line.family in (socket.AF_INET, socket.AF_INET6)
            if internet and line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found[inode] = descriptor
    return found


def _sockets() -> dict[int, int]:
    """Return every socket of this process: inode -> descriptor. Asking what each of them is would take longer."""
    found = {}
    with os.scandir("/proc/self/fd") as entries:
        descriptors = sorted(int(entry.name) for entry in entries)
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            told = os.fstat(descriptor)
            if stat.S_ISSOCK(told.st_mode):
                found[told.st_ino] = descriptor
    return found


def drop_newcomers(descriptor: int) -> None:
    """Let nobody connect to a listening socket; what a sandbox forbids is left as it was."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING, len(_RETURN_NOTHING))
    _set(descriptor, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def take_newcomers(descriptor: int) -> None:
    """Let everybody connect again."""
    _set(descriptor, _DETACH_FILTER, 0)


def _set(descriptor: int, option: int, value: bytes | int) -> None:
    # Closed meanwhile, or a sandbox forbids filters: the port stays as open as it was.
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.setsockopt(socket.SOL_SOCKET, option, value)
