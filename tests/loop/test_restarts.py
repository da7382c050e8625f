"""Restarts: bounded, further and further apart, and longer where machines are missing than where a worker died."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import ResourceError, WorkerDied, WorkerError
from areal_core.loop.restarts import Restarts

DIED, MISSING = WorkerDied("actor/0 was killed"), ResourceError("no machine has room")


@given(st.integers(0, 6), st.lists(st.booleans(), max_size=12))
def test_there_are_so_many_and_no_more(most: int, missing: list[bool]) -> None:
    """Whatever they are for, and however many steps were made between."""
    restarts = Restarts(most)
    for found_no_room in missing:
        if restarts.allow_waiting() if found_no_room else restarts.allow(num_steps=1):
            restarts.begin(MISSING if found_no_room else DIED)

    assert restarts.number <= most
    assert not restarts.allow(num_steps=1) or restarts.number < most


@pytest.mark.parametrize(("error", "pauses"), [(DIED, [0, 1, 2, 4, 8]), (MISSING, [0, 15, 30, 60, 120, 120])])
def test_each_waits_longer_than_the_one_before(error: WorkerError, pauses: list[float]) -> None:
    """Up to two minutes; a worker that died once is worth no wait."""
    restarts = Restarts(9)

    assert [restarts.begin(error) for _ in pauses] == pauses


def test_a_start_without_room_is_tried_again_only_after_a_loss() -> None:
    """A first start that finds none is refused at once: nothing was lost, so nothing comes back."""
    restarts = Restarts(2)

    assert not restarts.allow_waiting()
    restarts.begin(DIED)
    assert restarts.allow_waiting()
    restarts.begin(MISSING)
    assert not restarts.allow_waiting()


def test_a_start_that_made_no_step_gets_no_other_unless_it_is_the_first() -> None:
    """What dies at once, again and again, is not worth waiting for."""
    restarts = Restarts(9)

    assert restarts.allow(num_steps=0)
    restarts.begin(DIED)
    assert restarts.allow(num_steps=1) and not restarts.allow(num_steps=0)
