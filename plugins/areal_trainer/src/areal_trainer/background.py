"""A coroutine in a thread with an event loop of its own, so that a notebook's loop may go on running; Ctrl-C here is
heard there.

Knows: threads, loops, interrupts.
Does not know: what runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_aside(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, Result]], note: Callable[[str], None]
) -> tuple[Result, bool]:
    """Run a coroutine to its end, and return its result and whether somebody interrupted it. Any: of coroutines.

    The first Ctrl-C, or an interrupt of a notebook's kernel, or SIGTERM sets the event that the coroutine is given;
    the second cancels it; the third leaves it behind.

    Raises:
        KeyboardInterrupt: it was cancelled, or left behind.
    """
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop, stop = runner.get_loop(), asyncio.Event()
    ended: Future[Result] = Future()
    task: list[asyncio.Task[Any]] = []

    async def noted() -> Result:
        task.extend(each for each in (asyncio.current_task(),) if each is not None)
        return await work(stop)

    def run() -> None:
        try:
            with runner:
                ended.set_result(runner.run(noted()))
        except BaseException as error:  # whatever it is, it is raised where the result is waited for
            ended.set_exception(KeyboardInterrupt() if isinstance(error, asyncio.CancelledError) else error)

    inherited = contextvars.copy_context()  # a notebook knows by it below which cell output belongs
    threading.Thread(target=inherited.run, args=(run,), name="areal run", daemon=True).start()
    num_interrupts = 0
    with _terminated_as_interrupted():
        while True:
            try:
                return ended.result(), num_interrupts > 0
            except KeyboardInterrupt:
                num_interrupts += 1
                if ended.done() or num_interrupts > 2:
                    raise
                with suppress(RuntimeError):  # it has ended meanwhile
                    loop.call_soon_threadsafe(stop.set if num_interrupts == 1 else task[0].cancel)
                if num_interrupts == 1:
                    note("stopping after this step; interrupt again to stop at once")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Have SIGTERM count as an interrupt, where signals can be heard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
