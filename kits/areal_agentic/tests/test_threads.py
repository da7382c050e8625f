"""Calls in threads give what the function gives, and keep nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from areal_agentic.threads import in_thread

NAME: ContextVar[str] = ContextVar("NAME", default="")


def test_a_call_gives_what_its_function_gives() -> None:
    """A value, or any error; what the caller set in its context is seen."""

    async def run() -> None:
        NAME.set("agent")
        assert await in_thread(lambda a, b: (NAME.get(), a + b, threading.current_thread().daemon), 1, 2) == (
            "agent",
            3,
            True,
        )
        for error in (ValueError("x"), SystemExit(3), StopIteration(4)):

            def fail(error: BaseException = error) -> None:
                raise error

            with pytest.raises((type(error), RuntimeError)):
                await in_thread(fail)

    asyncio.run(run())


HANGS = """
import asyncio, threading
from areal_agentic.threads import in_thread

async def run():
    for _ in range(50):
        try:
            await asyncio.wait_for(in_thread(threading.Event().wait), 0.01)
        except TimeoutError:
            pass
    print("done")

asyncio.run(run())
"""


def test_calls_that_hang_keep_no_process() -> None:
    """However many."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "done\n"
