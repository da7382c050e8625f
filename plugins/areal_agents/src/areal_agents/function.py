"""An agent that is a function of this process: awaited in a loop of all agents, or a thread of its own if it is plain.

Knows: where it runs, and how long a call may take.
Does not know: where the function comes from (`source`), or what it asks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from areal_agentic.threads import in_thread
from areal_agents.agents_loop import AgentsLoop
from areal_core.contract.errors import EpisodeFailed


class FunctionAgent:
    """Calls a function with a row, a base URL and a key."""

    def __init__(
        self, function: Callable[..., Any], *, threads: int, timeout_s: float, loop: AgentsLoop | None = None
    ) -> None:
        """Start no thread yet. Any: the user's own.

        Args:
            function: the agent.
            threads: how many of a plain one at once.
            timeout_s: one call.
            loop: where coroutines are awaited; None awaits them here, those that are known not to block.
        """
        self._function, self._loop = function, loop
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
            return await self._timed(lambda: self._awaited(self._function, row, base_url, api_key))
        async with self._places:
            return await self._timed(lambda: self._in_thread(row, base_url, api_key))

    async def _in_thread(self, *given: object) -> object:
        returned = await in_thread(self._function, *given)
        return await self._awaited(lambda: returned) if inspect.isawaitable(returned) else returned

    async def _awaited(self, function: Callable[..., Awaitable[object]], *given: object) -> object:
        return await (function(*given) if self._loop is None else self._loop.call(function, *given))

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
            held = await self._loop.holder() if self._loop else ""
            raise EpisodeFailed(
                f"the agent was not done after {self._timeout_s:g} s",
                why=f"the event loop of all agents is held by {held}" if held else "it waits, or computes for long",
                fix="use an async client, or a plain def" if held else "bound its waits, or raise agent_timeout_s",
            ) from error
