"""A call of a user's function in a thread of its own: one that hangs keeps nobody, and ends with the process.

Executors wait for their threads when the process ends, and have none left once enough of them hang.

Knows: threads, and the loop that awaits one.
Does not know: how many there may be at once, or how long a call may take.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


async def in_thread(function: Callable[[*Ts], T], *given: *Ts) -> T:
    """Call a function in a thread and return what it does. Cancelled, the thread is left to itself.

    Raises:
        Anything: what the function raised, SystemExit too.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T, None] | tuple[None, BaseException]] = loop.create_future()
    context = copy_context()

    def tell(outcome: tuple[T, None] | tuple[None, BaseException]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    def call() -> None:
        outcome: tuple[T, None] | tuple[None, BaseException]
        try:
            outcome = context.run(function, *given), None
        except BaseException as error:
            outcome = None, error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=call, name=f"call of {getattr(function, '__name__', 'a function')}", daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only beside an error
