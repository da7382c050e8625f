"""One thread with one event loop, in which checks run, and which can be left behind when a check hangs.

Knows: what comes of plain functions and of coroutines at their deadline.
Does not know: checks, or how long a deadline is on a busy machine (`deadline`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from areal_conformance.deadline import Deadline, within

GRACE_S = 10.0
"""After a coroutine was cancelled at its deadline: the time it has to end before its thread is given up."""
WATCH_S = 2.0
"""How often the machine is looked at while a check runs: what its processes waited is gone with them."""


class Hung(Exception):
    """The work did not end in time; the runner cannot be used any more."""


class Runner:
    """A daemon thread. Work is done in order; a coroutine runs in the runner's one event loop."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Deadline, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="areal-conformance", daemon=True)
        self._thread.start()
        self.hung = False

    def run(self, work: Callable[[], Any], deadline: Deadline) -> Any:
        """Run `work()`; if it returns a coroutine, run that too. Any: its result.

        Raises:
            TimeoutError: a coroutine was cancelled at its deadline and ended.
            Hung: it did not end; the runner is given up.
        """
        future: Future[Any] = Future()
        self._work.put((work, deadline, future))
        given_grace = False
        while (left := deadline.left()) or not given_grace:
            given_grace = not left
            try:
                return future.result(timeout=min(left, WATCH_S) if left else GRACE_S)
            except TimeoutError:
                if future.done():
                    raise  # the work's own
            deadline.watch()
        self.hung = True
        raise Hung(f"still running {GRACE_S:g} s after its deadline of {deadline.limit_s:g} s")

    def close(self) -> None:
        """End the thread, unless it hangs: it ends with the process then."""
        self._work.put(None)
        if not self.hung:
            self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            while (item := self._work.get()) is not None:
                work, deadline, future = item
                try:
                    result = work()
                    if asyncio.iscoroutine(result):
                        result = runner.run(within(result, deadline))
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
