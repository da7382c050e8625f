"""Places in a server, given out in the order of asking, and only while the door is open.

Waiting here rather than in the server's own queue means that a request that waits through a weight update is
wholly computed by the new weights, and that a pause knows which requests have not begun.

Knows: who waits.
Does not know: what a place is for.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Interrupted(Exception):
    """The wait was ended by `interrupt` or `close`: whoever waited has not begun."""


class Slots:
    """`limit` places. Starts open. One event loop."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._open = True
        self._closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def num_waiting(self) -> int:
        """Return how many wait for a place or for the door."""
        return sum(not future.done() for future in self._waiting)

    async def acquire(self) -> None:
        """Wait for a place; whoever gets one calls `release`.

        Raises:
            Interrupted: `interrupt` was called meanwhile, or `close` ever.
        """
        if self._closed:
            raise Interrupted
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._grant()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release()  # the place was given in the same turn
            raise
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def release(self) -> None:
        """Give a place back."""
        self._free += 1
        self._grant()

    def shut(self) -> None:
        """Give no more places until `open`. Idempotent."""
        self._open = False

    def open(self) -> None:
        """Give places again. Idempotent."""
        self._open = True
        self._grant()

    def interrupt(self) -> None:
        """End every wait."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(Interrupted())

    def close(self) -> None:
        """End every wait, also later ones. Idempotent."""
        self._closed = True
        self.interrupt()

    def _grant(self) -> None:
        while self._open and self._free and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                self._free -= 1
                future.set_result(None)
