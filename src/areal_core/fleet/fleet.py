"""What a weight update needs of the inference fleet.

Knows: who takes part, who waits to join, how requests are held back.
Does not know: the order of an update (`weight_sync`), or how a pool does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from areal_core.contract.scheduler import Worker


class Replica(Protocol):
    """The part of a pool's replica an update needs."""

    @property
    def worker(self) -> Worker:
        """Return the handle on its process."""

    @property
    def healthy(self) -> bool:
        """Return whether it takes part in updates; once False, False for good."""

    @property
    def joining(self) -> bool:
        """Return whether it holds older weights than the fleet and serves nothing yet."""


class Fleet(Protocol):
    """The part of the inference pool an update needs."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """Return every replica, in service or not."""

    def suspend(self) -> None:
        """Hold new requests back. Requests in flight go on."""

    def release(self) -> None:
        """Let requests through again."""

    def exclude(self, worker_id: str, error: BaseException) -> None:
        """Take a replica out of service for good."""

    @property
    def expecting(self) -> bool:
        """Return whether a replica may come, or waits to join."""

    async def present(self) -> None:
        """Wait until some replica can take weights; raise NoReplica if none is there and none will come."""

    def admit(self, worker_id: str) -> None:
        """Let a replica serve that waited to join."""
