"""A clock that stands still until a test moves it.

Knows: who sleeps until when, and how to let the event loop run dry.
Does not know: threads, sockets and processes; what depends on them is not stepped.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

MAX_TURNS = 100_000
"""Turns of the loop `settle` allows before it says that something spins."""


class StepClock:
    """Virtual seconds. Sleepers wake in the order of their deadlines, equal ones in the order they came.

    Example:
        clock = StepClock()
        task = asyncio.create_task(clock.sleep(5.0))
        await clock.advance(5.0)
        assert task.done()
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._numbers = itertools.count()
        self._waiters: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Return the virtual seconds."""
        return self._now

    @property
    def num_waiters(self) -> int:
        """Return how many sleepers wait, timeouts of `wait_for` included."""
        return sum(not future.done() for _, _, future in self._waiters)

    @property
    def next_deadline(self) -> float | None:
        """Return when the next sleeper wakes, or None if nobody sleeps."""
        while self._waiters and self._waiters[0][2].done():  # cancelled
            heapq.heappop(self._waiters)
        return self._waiters[0][0] if self._waiters else None

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`; for 0 or less, one turn of the loop."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (self._now + seconds, next(self._numbers), future))
        await future

    async def wait_for(self, awaitable: Awaitable[T], timeout: float | None) -> T:
        """Return the result, or cancel the awaitable and raise TimeoutError once `timeout` virtual seconds passed."""
        task = asyncio.ensure_future(awaitable)
        if timeout is None:
            return await task
        timer = asyncio.ensure_future(self.sleep(timeout))
        try:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                raise TimeoutError(f"not done within {timeout:g} virtual seconds")
            return task.result()
        finally:
            timer.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def advance(self, seconds: float) -> None:
        """Move time forward, deadline by deadline, letting the loop run dry before and after each.

        What a woken task schedules within the span wakes within the span too.
        """
        target = self._now + seconds
        await self.settle()
        while (deadline := self.next_deadline) is not None and deadline <= target:
            self._now = max(self._now, deadline)
            _, _, future = heapq.heappop(self._waiters)
            future.set_result(None)
            await self.settle()
        self._now = target
        await self.settle()

    async def settle(self) -> None:
        """Let every task run until each one waits for the clock, or for something outside the loop.

        Raises:
            RuntimeError: the loop never runs dry, because a task spins.
        """
        # A loop offers no public way to ask whether anything is ready; asyncio's own loops have this queue.
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        if ready is None:
            for _ in range(100):
                await asyncio.sleep(0)
            return
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
        raise RuntimeError(f"the loop did not run dry within {MAX_TURNS} turns; a task spins without waiting")
