"""Calls to both ends of a stream of weights at once, and what is made of it when some of them fail.

Knows: that each end needs all the others, so that one failure becomes everybody's.
Does not know: transports, replicas or versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from areal_core.contract.errors import WeightSyncError, WorkerDied, WorkerTimeout

Results = Sequence[Any]
"""What each call returned, or its exception. Any: whatever workers answer."""


async def at_once(
    sending: Sequence[Coroutine[Any, Any, Any]],  # Any: asyncio's own, and a worker's answer
    receiving: Sequence[Coroutine[Any, Any, Any]],
    give_up: Callable[[], Awaitable[None]],
) -> tuple[Results, Results]:
    """Run all calls; return the results of the senders and of the receivers, exceptions among them.

    At the first failure `give_up` ends the stream for the others, and they are waited for: what they say tells who
    was to blame. Only if a sender is lost nobody is waited for: the other senders wait for it themselves.
    """
    tasks = [asyncio.ensure_future(call) for call in (*sending, *receiving)]
    senders = tasks[: len(sending)]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.exception() for task in done):
                await give_up()
            if any(is_lost(task.exception()) for task in done if task in senders):
                break
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return results[: len(sending)], results[len(sending) :]


def is_lost(result: object) -> bool:
    """Return whether this result says that the worker is gone or as good as."""
    return isinstance(result, WorkerDied | WorkerTimeout)


def most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Return the likeliest cause: a lost worker, else an error that speaks of more than a broken stream."""
    for error in errors:
        if is_lost(error):
            return error
    own = [e for e in errors if type(e) is not WeightSyncError and not isinstance(e, asyncio.CancelledError)]
    return (own or list(errors))[0]


def refused(result: object) -> bool:
    """Return whether this is an error of the replica's own, not the end of the stream as it saw it."""
    return isinstance(result, Exception) and type(result) is not WeightSyncError
