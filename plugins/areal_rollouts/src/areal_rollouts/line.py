"""Messages that wait to be taken to the other end, as many at a time as there are.

Knows: the order of messages, and how much goes at once.
Does not know: what a message says.
"""

from __future__ import annotations

import asyncio
from collections import deque

MOST_BYTES = 32 << 20
"""How much is taken at once, unless a single message is more."""


class Line:
    """One direction between two processes. In one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._some = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Append one message."""
        self._waiting.append(data)
        self._some.set()

    async def take(self, within_s: float | None = None) -> list[bytes]:
        """Wait for messages and return those there are, in order; none if none came within so many seconds."""
        try:
            async with asyncio.timeout(within_s):
                await self._some.wait()
        except TimeoutError:
            return []
        taken, size = [self._waiting.popleft()], 0
        while self._waiting and (size := size + len(taken[-1])) < MOST_BYTES:
            taken.append(self._waiting.popleft())
        if not self._waiting:
            self._some.clear()
        return taken
