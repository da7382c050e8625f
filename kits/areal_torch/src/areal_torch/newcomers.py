"""Ports that gloo leaves open after the ranks of a group have met: nobody may connect there any more.

Knows: how Linux is told to drop what arrives at a listening socket; connections that are there go on.
Does not know: gloo, whose listening sockets have no handle: they are those opened while a group was made.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of linux/socket.h; Python has no name for it."""
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter of one instruction that keeps no byte of any packet."""


@contextmanager
def no_newcomers() -> Iterator[None]:
    """Let nobody connect to sockets that this block made and left listening.

    For making process groups: a rank returns from that when all its peers are connected. Gloo takes every connection
    and never lets go of it, so a stranger could use up the descriptors of the process. Does nothing where groups
    connect later (`TORCH_GLOO_LAZY_INIT`), or on a system other than Linux.
    """
    lazy = os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("1", "true", "yes", "on", "y", "t")
    if lazy or not sys.platform.startswith("linux"):
        yield
        return
    before = set(_listening())
    yield
    for inode, descriptor in _listening().items():
        if inode not in before:
            _drop_newcomers(descriptor)


def _listening() -> dict[int, int]:
    """Return the internet sockets this process listens at: inode -> descriptor."""
    found = {}
    for entry in sorted(Path("/proc/self/fd").iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as line:
                internet = line.family in (socket.AF_INET, socket.AF_INET6)
                if internet and line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[os.fstat(line.fileno()).st_ino] = int(entry.name)
        except OSError:
            continue  # closed meanwhile
    return found


def _drop_newcomers(descriptor: int) -> None:
    program = ctypes.create_string_buffer(_RETURN_NOTHING, len(_RETURN_NOTHING))
    try:
        with socket.socket(fileno=os.dup(descriptor)) as line:
            line.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
    except OSError:
        return  # closed meanwhile, or a sandbox forbids filters: the port stays as open as gloo made it
