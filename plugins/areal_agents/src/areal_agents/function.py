"""An agent that is a function of this process: awaited, or in a thread where it is a plain one.

Knows: threads, and how long a call may take.
Does not know: where the function comes from (`source`), or what it asks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from areal_agentic.threads import in_thread
from areal_core.contract.errors import EpisodeFailed


class FunctionAgent:
    """Calls a function with a row, a base URL and a key."""

    def __init__(self, function: Callable[..., Any], *, threads: int, timeout_s: float) -> None:
        """Start no thread yet; `threads` bounds plain functions only. Any: the user's own."""
        self._function = function
        self._places = asyncio.Semaphore(threads)
        self._timeout_s = timeout_s

    async def __call__(self, row: dict[str, Any], base_url: str, api_key: str, episode: str) -> object:
        """Call it once. Any: a row is the data set's.

        Raises:
            EpisodeFailed: it took too long (a plain function goes on in its thread, which nobody can end), or ended
                with what would end more than itself: SystemExit, CancelledError.
            Anything: what the function raised.
        """
        if inspect.iscoroutinefunction(self._function):
            return await self._timed(lambda: self._function(row, base_url, api_key))
        async with self._places:
            return await self._timed(lambda: self._in_thread(row, base_url, api_key))

    async def _in_thread(self, *given: object) -> object:
        returned = await in_thread(self._function, *given)
        return await returned if inspect.isawaitable(returned) else returned

    async def _timed(self, call: Callable[[], Any]) -> object:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await call()
        except (SystemExit, asyncio.CancelledError) as error:
            if task.cancelling():
                raise asyncio.CancelledError from error
            what = f"the agent ended with {type(error).__name__}"
            raise EpisodeFailed(what, why=str(error), fix="have it return, or raise an error of its own") from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EpisodeFailed(
                f"the agent was not done after {self._timeout_s:g} s",
                why="it waits for something, or computes for long",
                fix="bound its waits, or raise agent_timeout_s",
            ) from error
