"""The event loop that users' coroutines run in, in a thread of its own: one that blocks holds up other agents at most.

In the loop of the run it would hold up the endpoint that it waits for, as a client that is not async does: for ever.

Knows: a thread, its loop, and which line holds it.
Does not know: what agents do, or how long they may take.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define, field

logger = logging.getLogger(__name__)
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_PONG_S = 1.0
LATE_S = 5.0
"""How long an agent may wait for its turn before somebody is told."""


@define(eq=False)
class AgentsLoop:
    """Runs coroutine functions for a caller in another loop. Its thread begins with the first call."""

    late_s: float = LATE_S
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)

    async def call(self, function: Callable[..., Awaitable[object]], *given: object) -> object:
        """Await a call there; cancelled with the caller, whom it does not hold up. Any: the user's own.

        Raises:
            Anything: what the function raised, SystemExit too.
        """
        here, begun = asyncio.get_running_loop(), asyncio.Event()

        async def called() -> tuple[object, BaseException | None]:
            here.call_soon_threadsafe(begun.set)
            try:
                return await function(*given), None
            except BaseException as error:  # SystemExit would end the loop of all
                return None, error

        work = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self._running()))
        beginning = asyncio.create_task(begun.wait())
        either: set[asyncio.Future[Any]] = {work, beginning}  # Any: whichever is first
        try:
            await asyncio.wait(either, timeout=self.late_s, return_when=asyncio.FIRST_COMPLETED)
            if not begun.is_set():
                await self._tell()
            result, error = await work
        finally:
            beginning.cancel()
            work.cancel()
        if error is not None:
            raise error
        return result

    async def holder(self) -> str:
        """Return the line that holds the loop, empty if none does.

        Example: "my_agent.py:7, in run: answer = client.chat.completions.create(...)"
        """
        if self._loop is None or self._thread is None:
            return ""
        pong = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))
        done, _ = await asyncio.wait({pong}, timeout=_PONG_S)
        frame = sys._current_frames().get(self._thread.ident or 0)
        if done or frame is None:
            return ""
        lines = traceback.extract_stack(frame)
        own = [each for each in lines if not each.filename.startswith((*_LIBRARIES, "<")) and each.filename != __file__]
        line = (own or lines)[-1]
        return f"{line.filename}:{line.lineno}, in {line.name}: {line.line}"

    def close(self) -> None:
        """End the loop; whatever is there still is cancelled, or left to a thread that ends with the process."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="areal-agents", daemon=True)
            self._thread.start()
        return self._loop

    async def _tell(self) -> None:
        where = await self.holder()
        if where and not self._told:
            self._told = True
            logger.warning(
                "agents wait for one another: their event loop is held by %s\n"
                "  fix: use an async client (AsyncOpenAI), or a plain function (def run), which has a thread",
                where,
            )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
