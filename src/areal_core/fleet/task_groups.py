"""Several awaitables as one: all results, or the first error as itself; and one that is not to be cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all at once, in order; on the first error cancel the others, wait for them, and raise it."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not be left half done; a cancellation is raised after it. Any: asyncio's own."""
    task = asyncio.ensure_future(work)
    interrupted = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            interrupted = True
    if interrupted and (task.cancelled() or task.exception() is None):
        raise asyncio.CancelledError
    return task.result()
