"""Arithmetic on a whole batch, which must not keep the event loop waiting.

Knows: from which size on a thread is worth its hand-over.
Does not know: what is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE = 1 << 15
"""Tokens that take some milliseconds. Below, a thread would wait longer for its turn beside a busy event loop."""


async def aside(num_tokens: int, work: Callable[[], T]) -> T:
    """Return what `work` does with so many tokens; the event loop goes on meanwhile if they are many.

    The thread is its own: those that workflows wait in may all be taken. Cancelled, it is left to end by itself.
    """
    if num_tokens < LARGE:
        return work()
    thread = ThreadPoolExecutor(1, thread_name_prefix="areal-batch")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)
