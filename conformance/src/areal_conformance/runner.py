"""One thread with one event loop, in which checks run, and which can be left behind when a check hangs.

Knows: deadlines of plain functions and of coroutines.
Does not know: checks.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

GRACE_S = 10.0
"""After a coroutine was cancelled at its deadline: the time it has to end before its thread is given up."""


class Hung(Exception):
    """The work did not end in time; the runner cannot be used any more."""


class Runner:
    """A daemon thread. Work is done in order; a coroutine runs in the runner's one event loop."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], float, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="areal-conformance", daemon=True)
        self._thread.start()
        self.hung = False

    def run(self, work: Callable[[], Any], deadline_s: float) -> Any:
        """Run `work()`; if it returns a coroutine, run that too. Any: its result.

        Raises:
            TimeoutError: a coroutine was cancelled at its deadline and ended.
            Hung: it did not end; the runner is given up.
        """
        future: Future[Any] = Future()
        self._work.put((work, deadline_s, future))
        try:
            return future.result(timeout=deadline_s + GRACE_S)
        except TimeoutError:
            if future.done():
                raise  # the work's own
            self.hung = True
            raise Hung(f"still running {GRACE_S:g} s after its deadline of {deadline_s:g} s") from None

    def close(self) -> None:
        """End the thread, unless it hangs: it ends with the process then."""
        self._work.put(None)
        if not self.hung:
            self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            while (item := self._work.get()) is not None:
                work, deadline_s, future = item
                try:
                    result = work()
                    if asyncio.iscoroutine(result):
                        result = runner.run(_bounded(result, deadline_s))
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)


async def _bounded(coroutine: Any, deadline_s: float) -> Any:
    async with asyncio.timeout(deadline_s):
        return await coroutine
