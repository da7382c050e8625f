"""Work done one step ahead of who uses its results.

Knows: one thread.
Does not know: what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(jobs: Iterable[Callable[[], T]]) -> Generator[T]:
    """Yield what each job returns; the next one is at work in a thread while the caller uses a result.

    A job starts after the result before the last was used. The first error is raised in the place of its result. To
    end early make the running job end, then close this generator, which waits for it.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="areal-weights") as thread:
        before: Future[T] | None = None
        for job in jobs:
            following = thread.submit(job)
            if before is not None:
                yield before.result()
            before = following
        if before is not None:
            yield before.result()
