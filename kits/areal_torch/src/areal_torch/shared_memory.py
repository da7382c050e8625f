"""One shared-memory segment: who owns it, how it is found, how large it is.

Knows: anonymous memory reached through /proc, files in /dev/shm, identity, room.
Does not know: what the bytes mean (`areal_local.transports.layout`).

The controller owns an anonymous segment and never maps it. Trainer and replicas open it
as /proc/<controller>/fd/<number>; when the last of them is gone, however it went, the kernel
frees the memory: there is no name that could be left behind, and /dev/shm's size does not bound it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from attrs import frozen

from areal_core.contract.errors import ResourceError, WeightSyncError


@frozen(kw_only=True)
class Segment:
    """A segment the controller holds open. `path` is what others open."""

    descriptor: int
    path: str
    named: bool

    @classmethod
    def anonymous(cls, name: str) -> Segment:
        """Make memory without a name; it lives as long as some process holds it. Linux."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        return cls(descriptor=descriptor, path=f"/proc/{os.getpid()}/fd/{descriptor}", named=False)

    @classmethod
    def file(cls, path: Path) -> Segment:
        """Make a file, mode 0600, that `close` removes."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return cls(descriptor=descriptor, path=str(path), named=True)

    @property
    def location(self) -> dict[str, str | int]:
        """Return how others find it, and how they know that it is still the same one."""
        status = os.fstat(self.descriptor)
        return {"path": self.path, "device": status.st_dev, "inode": status.st_ino}

    def close(self) -> None:
        """Let go of it. Once: the descriptor's number may be somebody else's afterwards."""
        if self.named:
            Path(self.path).unlink(missing_ok=True)
        os.close(self.descriptor)


def has_anonymous() -> bool:
    """Tell whether this machine has anonymous segments others can open."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def open_segment(location: Mapping[str, str | int], *, writable: bool) -> int:
    """Open a segment made by another process and return the descriptor.

    Raises:
        WeightSyncError: it is gone, or its place was taken by something else.
    """
    path = str(location["path"])
    try:
        # Non-blocking: should the place now hold a pipe, opening it must not hang before the check below.
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise WeightSyncError(
            f"the weight segment {path} cannot be opened",
            why=f"{error.strerror}: the offer was released, or its owner runs in another container or as another user",
            fix="use transport `disk`, or shm with `backing: file`, across containers",
        ) from error
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (location["device"], location["inode"]):
        os.close(descriptor)
        raise WeightSyncError(f"the weight segment {path} is gone", why="its offer was released")
    return descriptor


def grow(descriptor: int, size: int, path: str) -> None:
    """Give the segment at least `size` bytes that are really there: writing them cannot fail later.

    Never shrinks: a reader that was given up on may still look at the end of it.

    Raises:
        ResourceError: there is no room; tells how much is needed and how much there is.
    """
    status = os.fstat(descriptor)
    # Room that `drop` gave back is within the size and not there.
    held = min(status.st_size, status.st_blocks * 512) if hasattr(os, "posix_fallocate") else status.st_size
    if held >= size:
        return
    needed = size - held
    free = _free_bytes(path)
    if needed > free:
        raise _no_room(needed, free, path)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        os.ftruncate(descriptor, status.st_size)
        raise _no_room(needed, _free_bytes(path), path) from error


def map_segment(descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map a segment. Readers cannot write: it would reach nobody else, but stay in what they read there later."""
    flags = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
    mapped = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    if sys.platform == "linux":
        advice = _MADV_POPULATE_WRITE if writable else _MADV_POPULATE_READ
        # Linux before 5.14 does not know it: pages are mapped one fault at a time, only slower.
        with contextlib.suppress(OSError):
            mapped.madvise(advice)
    return mapped


def drop(mapped: mmap.mmap) -> None:
    """Give the memory of a shared mapping back, all but its first page; it reads as zeros from now on.

    The segment keeps its size: whoever still has it mapped must not be killed for looking at it.
    """
    if hasattr(mmap, "MADV_REMOVE") and len(mapped) > mmap.PAGESIZE:
        # Not every file system can; then the room comes back with the release.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_REMOVE, mmap.PAGESIZE, len(mapped) - mmap.PAGESIZE)


_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23


def _free_bytes(path: str) -> int:
    if path.startswith("/proc/"):
        return int(psutil.virtual_memory().available)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _no_room(needed: int, free: int, path: str) -> ResourceError:
    where = "memory" if path.startswith("/proc/") else str(Path(path).parent)
    return ResourceError(
        f"{needed / 1e9:.2f} GB of shared memory for weights do not fit",
        why=f"{free / 1e9:.2f} GB are free in {where}",
        fix="free memory, enlarge /dev/shm (in Docker: --shm-size), or set weight_sync.transport: disk",
    )
