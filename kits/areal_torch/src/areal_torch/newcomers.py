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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    before = set(listening_sockets())
    yield
    for inode, descriptor in listening_sockets().items():
        if inode not in before:
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
        before = set(listening_sockets())
        yield found
        found += [descriptor for inode, descriptor in listening_sockets().items() if inode not in before]


def _can_be_shut() -> bool:
    lazy = os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("1", "true", "yes", "on", "y", "t")
    return not lazy and sys.platform.startswith("linux")


def listening_sockets() -> dict[int, int]:
    """Return the internet sockets this process listens at: inode -> descriptor. Linux only."""
    found = {}
    for descriptor in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        try:
            told = os.fstat(descriptor)
            if not stat.S_ISSOCK(told.st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as line:
                internet = line.family in (socket.AF_INET, socket.AF_INET6)
                if internet and line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[told.st_ino] = descriptor
        except OSError:
            continue  # closed meanwhile
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
