"""Work done one step ahead of its user."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from areal_local.transports.ahead import one_ahead


def test_the_next_job_is_at_work_while_a_result_is_used_and_no_other() -> None:
    """So two rooms are enough for as many results as there are."""
    started = [threading.Event() for _ in range(4)]

    def job(number: int) -> Callable[[], int]:
        def work() -> int:
            started[number].set()
            return number

        return work

    results = one_ahead(job(number) for number in range(4))
    seen = []
    for number in results:
        if number + 1 < 4:
            assert started[number + 1].wait(5)
        seen.append((number, [event.is_set() for event in started[number + 2 :]]))

    assert seen == [(0, [False, False]), (1, [False]), (2, []), (3, [])]


def test_an_error_stands_where_its_result_would() -> None:
    """What came before it is used; nothing comes after."""

    def fail() -> int:
        raise ValueError("broken")

    results = one_ahead([lambda: 1, fail, lambda: 3])

    assert next(results) == 1
    with pytest.raises(ValueError, match="broken"):
        next(results)
    assert list(results) == []


def test_nothing_to_do_is_no_result() -> None:
    """A version of no tensors has no buckets."""
    assert list(one_ahead([])) == []
