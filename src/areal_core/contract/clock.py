"""Time as an argument: what waits takes a clock, so that tests can step it.

Public, for schedulers.

Knows: the real clock and the protocol every clock has.
Does not know: who waits, or for what (`areal_core.testing.clock` has the stepped one).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class Clock(Protocol):
    """Seconds that never go back, and two ways to wait for them."""

    def now(self) -> float:
        """Return seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed; at least one turn of the event loop."""

    async def wait_for(self, awaitable: Awaitable[T], timeout: float | None) -> T:
        """Return the result, or cancel the awaitable once `timeout` seconds have passed.

        None waits for ever. Cancelling the caller cancels the awaitable.

        Raises:
            TimeoutError: it was not done in time.
        """


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep in the running event loop."""
        await asyncio.sleep(seconds)

    async def wait_for(self, awaitable: Awaitable[T], timeout: float | None) -> T:
        """Wait in the running event loop."""
        async with asyncio.timeout(timeout):  # wait_for of Python 3.11 can lose a cancellation
            return await awaitable
