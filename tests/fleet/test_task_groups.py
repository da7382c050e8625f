"""Awaitables together: begun at once where there is one, and cut short by an event without losing what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from areal_core.fleet.task_groups import gather_or_cancel, unless_set


async def ready() -> str:
    """Return without waiting."""
    return "done"


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end. Any: asyncio's own."""
    asyncio.run(work)


def test_work_that_need_not_wait_takes_no_turn_of_the_loop() -> None:
    """A batch that is ready reaches the trainer before rollouts that a new version lets in."""

    async def run() -> None:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "a turn")

        assert await unless_set(asyncio.Event(), ready()) == "done"
        assert await gather_or_cancel([ready()]) == ["done"]
        assert seen == []
        assert await gather_or_cancel([ready(), ready()]) == ["done", "done"]
        assert seen == ["a turn"]

    in_loop(run())


def test_the_event_ends_work_that_waits() -> None:
    """Its end is waited for, and the task goes on as one that nobody cancelled."""

    async def run() -> None:
        event, ended = asyncio.Event(), []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        asyncio.get_running_loop().call_soon(event.set)
        assert await unless_set(event, work()) is None
        assert ended == [True]
        this = asyncio.current_task()
        assert this is not None and this.cancelling() == 0
        async with asyncio.timeout(60.0):
            assert await unless_set(event, ready()) == "done"  # it is done, whatever the event says

    in_loop(run())


def test_what_was_returned_while_the_event_came_is_kept() -> None:
    """Work that ends in spite of it, and an event that comes in the turn in which the work ended."""

    async def run() -> None:
        event, future = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def stubborn() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "all the same"
            return "never"

        def both() -> None:
            future.set_result("just in time")
            event.set()

        asyncio.get_running_loop().call_soon(both)
        assert await unless_set(event, future) == "just in time"
        await asyncio.sleep(0)  # nothing of it arrives later
        assert await unless_set(event, stubborn()) == "all the same"
        this = asyncio.current_task()
        assert this is not None and this.cancelling() == 0

    in_loop(run())


def test_somebody_elses_cancellation_is_no_event() -> None:
    """It comes out, alone and together with the event; an error of the work comes out as itself."""

    async def run() -> None:
        for also in (False, True):
            event = asyncio.Event()
            outer = asyncio.ensure_future(unless_set(event, asyncio.Event().wait()))
            await asyncio.sleep(0)
            outer.cancel()
            if also:
                event.set()
            with pytest.raises(asyncio.CancelledError):
                await outer

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("no rows")

        with pytest.raises(ValueError, match="no rows"):
            await unless_set(asyncio.Event(), fails())

    in_loop(run())
