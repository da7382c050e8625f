"""Work that must come to its end although whoever asked for it is gone.

A pause or a commit half done leaves a server in a state nobody knows, so cancelling the caller does not cancel it.

Knows: what is under way, and what must not overlap.
Does not know: what it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Work:
    """Tasks of one owner, in one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # Any: each has its own result
        self._alone = asyncio.Lock()

    async def alone(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what it returns, after all that was given here before it; goes on if the caller is cancelled."""
        return await asyncio.shield(self.later(self._one_by_one(work)))

    def later(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it; nobody needs to wait for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def end(self) -> None:
        """Wait for all of it."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _one_by_one(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._alone:
            return await work

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever waits gets it, and perhaps nobody does
