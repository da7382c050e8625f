"""What many ask for is made once and kept as long as there is room."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_torch.single_flight_cache import SingleFlightCache


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 12))
def test_every_value_is_the_one_of_its_key_and_no_more_are_kept_than_fit(keys: list[int], limit: int) -> None:
    """A value is as large as its key; those asked for last are still there, as far as they fit together."""
    cache = SingleFlightCache[int](limit, size=lambda value: value)
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key

    for key in keys:
        assert cache.get(key, partial(make, key)) == key
        assert sum(cache._values.values()) <= limit

    recent: list[int] = []
    for key in reversed(keys):
        if key not in recent:
            recent.append(key)
        if sum(recent) > limit:
            recent.pop()
            break
    again = len(made)
    for key in recent:
        cache.get(key, partial(make, key))
    assert made[again:] == []


def test_whoever_asks_while_it_is_made_waits_for_the_same_value() -> None:
    """Others ask when it is half made; none of them makes another, and all get this one."""
    cache, again = SingleFlightCache[object](1), threading.Event()

    def make_again() -> object:
        again.set()
        return object()

    with ThreadPoolExecutor(3) as threads:
        others: list[Future[object]] = []

        def make() -> object:
            others.extend(threads.submit(cache.get, "key", make_again) for _ in range(3))
            again.wait(0.1)  # a bound on how long a wrong cache may take to show itself
            return object()

        value = cache.get("key", make)

        assert [other.result() for other in others] == [value] * 3 and not again.is_set()


def test_a_failure_is_raised_to_who_asked_and_not_kept() -> None:
    """The next one who asks makes it anew."""
    cache = SingleFlightCache[int](1)

    def fail() -> int:
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        cache.get("key", fail)
    assert cache.get("key", lambda: 3) == 3
