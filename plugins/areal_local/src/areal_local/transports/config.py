"""Options of the transports. Plain data: read by the plan without importing torch."""

from __future__ import annotations

from attrs import field, frozen, validators

BUCKET_BYTES = 64 * 1024 * 1024
SHARED_BUCKET_BYTES = 256 * 1024 * 1024
"""Buckets of shared memory are views: a large one takes no memory at a receiver, and keeps every thread at work."""


@frozen(kw_only=True)
class DiskConfig:
    """Weights through files of a folder."""

    root: str = ""
    """Every participant must see it under the same path; empty means the system's temporary folder, or that of the run
    if it is on several hosts."""
    bucket_bytes: int = field(default=BUCKET_BYTES, validator=validators.ge(1))
    """Bytes that travel as one piece."""
    fsync: bool = False
    """Wait for the disk itself. Only needed where readers do not share the writer's page cache."""


@frozen(kw_only=True)
class ShmConfig:
    """Weights through memory of one machine."""

    backing: str = field(default="auto", validator=validators.in_(("auto", "memory", "file")))
    """`memory` is an anonymous segment that vanishes with its processes (Linux); `file` is for
    participants that cannot see each other in /proc. `auto` takes memory where it exists."""
    folder: str = ""
    """Where files lie; empty means /dev/shm, else the system's temporary folder."""
    bucket_bytes: int = field(default=SHARED_BUCKET_BYTES, validator=validators.ge(1))
    """Bytes that travel as one piece."""


@frozen(kw_only=True)
class CollectiveConfig:
    """Weights through a process group of trainers and replicas."""

    host: str = field(default="127.0.0.1", validator=validators.min_len(1))
    """The address of the controller's machine that every participant reaches; a run that does not set it
    takes the one that leads to its workers, anybody else loopback."""
    backend: str = field(default="auto", validator=validators.in_(("auto", "gloo", "nccl", "hccl")))
    """`auto` takes NCCL or HCCL where every participant has a device of its own, else gloo."""
    fan_out: str = field(default="auto", validator=validators.in_(("auto", "broadcast")))
    """How one sender reaches many. `auto` has each receiver pass on what it gets while it gets it, host by host,
    where gloo is the backend and all can; `broadcast` leaves it to the backend."""
    delta: bool = False
    """Send what changed since the version before, where every receiver has that one. Trainer and replicas each keep a
    copy of the weights in memory for it."""
    bucket_bytes: int = field(default=BUCKET_BYTES, validator=validators.ge(1))
    """Bytes that travel as one piece."""
    timeout_s: float = field(default=60.0, validator=validators.gt(0.0))
    """Every single wait for a peer."""
