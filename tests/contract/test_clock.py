"""The stepped clock moves everybody who waits, in order, and nobody else."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.clock import Clock, SystemClock
from areal_core.testing.clock import StepClock


@pytest.mark.parametrize("kind", [SystemClock, StepClock])
def test_clocks_satisfy_the_protocol(kind: type) -> None:
    """Both clocks can stand in for each other."""
    assert isinstance(kind(), Clock)


@given(delays=st.lists(st.integers(1, 20), min_size=1, max_size=12), step=st.integers(1, 7))
def test_sleepers_wake_in_deadline_order_however_time_is_cut(delays: list[int], step: int) -> None:
    """The order and the instants of waking depend on the deadlines only."""

    async def run() -> list[tuple[float, int]]:
        clock, woken = StepClock(), []

        async def sleeper(number: int, delay: int) -> None:
            await clock.sleep(delay)
            woken.append((clock.now(), number))

        tasks = [asyncio.create_task(sleeper(number, delay)) for number, delay in enumerate(delays)]
        while clock.now() < 20:
            await clock.advance(step)
        await asyncio.gather(*tasks)
        return woken

    woken = asyncio.run(run())

    assert [(delay, number) for delay, number in sorted((d, n) for n, d in enumerate(delays))] == woken


def test_one_advance_wakes_a_chain_of_sleeps() -> None:
    """Sleeps begun within the span end within the span, each at its own instant."""

    async def run() -> list[float]:
        clock, seen = StepClock(), []

        async def ticker() -> None:
            for _ in range(4):
                await clock.sleep(2.5)
                await asyncio.gather(*(asyncio.sleep(0) for _ in range(20)))
                seen.append(clock.now())

        task = asyncio.create_task(ticker())
        await clock.advance(10)
        assert task.done()
        return seen

    assert asyncio.run(run()) == [2.5, 5.0, 7.5, 10.0]


def test_wait_for_cancels_what_is_late() -> None:
    """A late awaitable is cancelled, the caller gets TimeoutError, and no waiter stays."""

    async def run() -> tuple[bool, int]:
        clock, event = StepClock(), asyncio.Event()
        inner = asyncio.ensure_future(event.wait())
        outer = asyncio.create_task(clock.wait_for(inner, 3.0))
        await clock.advance(2.9)
        assert not outer.done()
        await clock.advance(0.2)
        with pytest.raises(TimeoutError):
            await outer
        return inner.cancelled(), clock.num_waiters

    assert asyncio.run(run()) == (True, 0)


def test_wait_for_returns_what_is_in_time_and_frees_its_timer() -> None:
    """A result in time is returned and the timer is gone."""

    async def run() -> tuple[str, int]:
        clock = StepClock()

        async def work() -> str:
            await clock.sleep(1)
            return "done"

        outer = asyncio.create_task(clock.wait_for(work(), 3.0))
        await clock.advance(1)
        return await outer, clock.num_waiters

    assert asyncio.run(run()) == ("done", 0)


def test_cancelling_the_waiter_cancels_the_awaited() -> None:
    """Cancellation goes through `wait_for` to what it waits on."""

    async def run() -> bool:
        clock, event = StepClock(), asyncio.Event()
        inner = asyncio.ensure_future(event.wait())
        outer = asyncio.create_task(clock.wait_for(inner, 3.0))
        await clock.settle()
        outer.cancel()
        await asyncio.wait([outer])
        return inner.cancelled() and outer.cancelled()

    assert asyncio.run(run())


def test_a_cancelled_sleeper_is_forgotten() -> None:
    """The next deadline is that of somebody who still waits."""

    async def run() -> float | None:
        clock = StepClock()
        first, second = asyncio.create_task(clock.sleep(1)), asyncio.create_task(clock.sleep(2))
        await clock.settle()
        first.cancel()
        await clock.settle()
        deadline = clock.next_deadline
        second.cancel()
        return deadline

    assert asyncio.run(run()) == 2


def test_settle_names_a_spinning_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that never waits is an error, not a hang."""
    monkeypatch.setattr("areal_core.testing.clock.MAX_TURNS", 50)

    async def run() -> None:
        async def spin() -> None:
            for _ in range(1_000_000):
                await asyncio.sleep(0)

        task = asyncio.create_task(spin())
        try:
            await StepClock().settle()
        finally:
            task.cancel()

    with pytest.raises(RuntimeError, match="spins"):
        asyncio.run(run())
