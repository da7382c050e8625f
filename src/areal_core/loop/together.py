"""Several awaitables as one: all results, or the first error as itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def together(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all at once, in order; on the first error cancel the others, wait for them, and raise it."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
