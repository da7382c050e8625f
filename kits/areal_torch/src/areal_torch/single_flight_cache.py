"""Results of costly work that many ask for at once: made once, the last ones kept.

Knows: who is making what, and how much is kept.
Does not know: what is made, or in which thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

V = TypeVar("V")


class SingleFlightCache(Generic[V]):
    """A bounded cache for threads. Whoever asks for what another is making waits for it; a failure is not kept.

    Example:
        cache = SingleFlightCache(limit=1 << 30, size=len)
        data = cache.get("cat.png", lambda: Path("cat.png").read_bytes())
    """

    def __init__(self, limit: int, size: Callable[[V], int] = lambda _: 1) -> None:
        """Keep values whose sizes add up to at most `limit`; the default size of one is 1."""
        self._limit, self._size = limit, size
        self._lock = threading.Lock()
        self._making: dict[Hashable, Future[V]] = {}
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._total = 0

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key, made now if it is not kept. Raises whatever `make` raises."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            future = self._making.get(key)
            if future is None:
                mine = self._making[key] = Future[V]()
        if future is not None:
            return future.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._keep(key, value)
        mine.set_result(value)
        return value

    def _keep(self, key: Hashable, value: V) -> None:
        self._values[key] = value
        self._total += self._size(value)
        while self._total > self._limit:
            _, old = self._values.popitem(last=False)
            self._total -= self._size(old)
