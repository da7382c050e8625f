"""Several awaitables as one: all results, or the first error as itself; one cut short on request, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all at once, in order; on the first error cancel the others, wait for them, and raise it."""
    if len(calls) == 1:  # begun at once: a task would wait for its turn
        return [await calls[0]]
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


async def unless_set(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Await the work, or cancel it as soon as the event is set, wait for its end, and return None.

    What work that is done returned is never thrown away, and work that need not wait takes no turn of the loop.
    """
    this, cut, ended = asyncio.current_task(), False, False
    assert this is not None, "awaited in no task"
    others = this.cancelling()

    def cut_short(_: object) -> None:
        nonlocal cut
        cut = not ended and this.cancel()

    waiting = asyncio.ensure_future(event.wait())
    waiting.add_done_callback(cut_short)
    try:
        return await work
    except asyncio.CancelledError:
        if cut and this.cancelling() == others + 1:
            return None
        raise
    finally:
        ended = True
        waiting.cancel()
        if cut:
            this.uncancel()
