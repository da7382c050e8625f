"""Options of the transports. Plain data: read by the plan without importing torch."""

from __future__ import annotations

from attrs import field, frozen, validators

BUCKET_BYTES = 64 * 1024 * 1024


@frozen(kw_only=True)
class DiskConfig:
    """`root` empty means the system's temporary folder; every participant must see it under the same path."""

    root: str = ""
    bucket_bytes: int = field(default=BUCKET_BYTES, validator=validators.ge(1))
    fsync: bool = False
    """Wait for the disk itself. Only needed where readers do not share the writer's page cache."""


@frozen(kw_only=True)
class ShmConfig:
    """`backing` memory is an anonymous segment that vanishes with its processes (Linux).

    `file` is a file in `folder` (empty: /dev/shm, else the system's temporary folder), for
    participants that cannot see each other in /proc. `auto` takes memory where it exists.
    """

    backing: str = field(default="auto", validator=validators.in_(("auto", "memory", "file")))
    folder: str = ""
    bucket_bytes: int = field(default=BUCKET_BYTES, validator=validators.ge(1))


@frozen(kw_only=True)
class CollectiveConfig:
    """`host` is the address of the controller's machine that every participant reaches; a run that does not set it
    takes the one that leads to its workers, anybody else loopback.

    `backend` auto takes NCCL or HCCL where every participant has a device of its own, else gloo. `timeout_s` bounds
    every single wait for a peer.
    """

    host: str = field(default="127.0.0.1", validator=validators.min_len(1))
    backend: str = field(default="auto", validator=validators.in_(("auto", "gloo", "nccl", "hccl")))
    bucket_bytes: int = field(default=BUCKET_BYTES, validator=validators.ge(1))
    timeout_s: float = field(default=60.0, validator=validators.gt(0.0))
