"""Places are given in the order of asking, never more than there are, and none is lost by who gives up."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from areal_serving.slots import Interrupted, Slots

ACTIONS = st.lists(
    st.one_of(
        st.sampled_from(["ask", "turn", "shut", "open", "interrupt"]),
        st.tuples(st.sampled_from(["cancel", "release"]), st.integers(0, 12)),
    ),
    max_size=40,
)


@given(st.integers(1, 3), ACTIONS)
@example(2, ["ask", "ask", "ask", "shut", "turn", "open", "ask"])
@example(1, ["ask", "ask", "ask", "turn"])
def test_any_order_of_asking_cancelling_shutting_and_releasing(limit, actions):
    """At most `limit` at once, first come first served, and in the end everybody who stays is served."""

    async def run():
        slots, tasks, served, leave = Slots(limit), [], [], {}

        async def visit(number):
            await slots.acquire()
            served.append(number)
            try:
                # An earlier one may have a place and not have woken up; none of them still waits for one.
                assert slots.num_waiting <= sum(later not in served for later in range(number + 1, len(tasks)))
                await leave.setdefault(number, asyncio.Event()).wait()
            finally:
                slots.release()
                served.append(~number)

        def inside():
            return [n for n in served if n >= 0 and ~n not in served]

        for action in actions:
            if action == "ask":
                tasks.append(asyncio.ensure_future(visit(len(tasks))))
            elif action == "turn":
                await asyncio.sleep(0)
            elif isinstance(action, str):
                getattr(slots, action)()
            elif action[1] < len(tasks):
                number = action[1]
                if action[0] == "cancel":
                    tasks[number].cancel()
                else:
                    leave.setdefault(number, asyncio.Event()).set()
            assert len(inside()) <= limit
        slots.open()
        for number in range(len(tasks)):
            leave.setdefault(number, asyncio.Event()).set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(o is None or isinstance(o, asyncio.CancelledError | Interrupted) for o in outcomes)
        for _ in range(limit):
            await slots.acquire()  # every place came back
        assert slots.num_waiting == 0

    asyncio.run(run())


def test_after_close_nobody_waits():
    """Those who wait and those who come later are told alike."""

    async def run():
        slots = Slots(1)
        await slots.acquire()
        waiting = asyncio.ensure_future(slots.acquire())
        await asyncio.sleep(0)
        slots.close()
        slots.open()
        for wait in (waiting, slots.acquire()):
            with pytest.raises(Interrupted):
                await wait

    asyncio.run(run())
