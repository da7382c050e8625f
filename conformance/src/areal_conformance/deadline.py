"""Deadlines that hold on a busy machine: the time a processor was kept from us by others is not counted.

A process that hangs waits for nothing; one on a busy machine waits for a processor, and Linux counts for how long. So
a deadline that has passed goes on by as much as the processes of this run had to wait, five times its length at most.
One that is missed although they had their time says what it always did; one that ends before says nothing.

Knows: what `/proc` tells of this process, its descendants and the processors they may use.
Does not know: checks and outcomes. Where the system tells nothing, a deadline is a clock.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from attrs import evolve, frozen

from areal_conformance.outcome import Violation

T = TypeVar("T")
MOST = 5.0
"""How many times its length a deadline may last."""
STARVED = 0.25
"""The part of the time that our processes must have waited for a processor, to be given it back."""
HALF = 0.5
"""The part of the time from which on a limit that is not ours, and goes by the clock, says nothing."""
NEARLY = 0.9
"""The part of its length that a deadline must have been worth, to have been kept."""
OTHERS = 0.2
"""The part of our processors that others must have used meanwhile: what our own processes take from each other is
their own doing. Checks that another process of the run makes at the same time are others'."""
FRESH_S = 0.25
"""How old a look may be that a deadline begins with."""
_PROC = Path("/proc")
_looking = threading.RLock()
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Late(Violation):
    """Something did not happen within its deadline. `starved`: the deadline was cut short, the machine being busy."""

    def __init__(self, message: str, *, starved: bool, law: int | None = None) -> None:
        super().__init__(message, law=law)
        self.starved = starved


@frozen(kw_only=True)
class Look:
    """What was used and waited for since each process began, in seconds."""

    at: float
    waited: Mapping[tuple[int, int], float]
    """(process, thread) of ours -> how long it was ready to run and did not."""
    own: float
    """Processor time of this process and its descendants, dead ones included."""
    busy: float
    """Processor time that everybody took from the processors we may use."""
    processors: int


class Deadline:
    """So many seconds from now, and as many more as others kept the processors from us.

    Example:
        deadline = Deadline(6.0 * patience)
        while not done():
            if not deadline.left():
                raise deadline.late("nothing came")
            time.sleep(0.01)
    """

    def __init__(self, limit_s: float, *, look: Callable[[], Look | None] | None = None) -> None:
        """`look` is what tells of the machine; for tests."""
        self.limit_s = limit_s
        self._look = look or look_now
        self._before = self._look() if look else look_lately()
        self._began = time.monotonic()
        self._granted = 0.0
        self._waited: Mapping[tuple[int, int], float] = {}
        """What was seen of each process so far: one that has ended cannot be asked any more."""

    def left(self) -> float:
        """Return for how many seconds to wait before asking again; 0.0 when it is over."""
        end = self._began + self.limit_s
        now = time.monotonic()
        if now < end + self._granted:
            return end + self._granted - now
        if (more := min(self._starved_s(), (MOST - 1.0) * self.limit_s)) > self._granted:
            self._granted = more
        return max(0.0, end + self._granted - now)

    @property
    def starved(self) -> bool:
        """Whether others had the processors for so much of the time that a limit by the clock says nothing."""
        return self._starved_s() > HALF * (time.monotonic() - self._began)

    @property
    def cut_short(self) -> bool:
        """Whether, when it is over, it was worth less than its length: what did not come had no time to."""
        worth = time.monotonic() - self._began - self._starved_s()
        return self._granted > 0.0 and worth < NEARLY * self.limit_s

    def late(self, message: str, *, law: int | None = None) -> Late:
        """Return the error of having missed it."""
        return Late(message, starved=self.cut_short, law=law)

    def watch(self) -> None:
        """Remember how long processes had to wait until now; for whoever waits with a deadline, every few seconds."""
        self._starved_s()

    def _starved_s(self) -> float:
        after = self._look()
        if self._before is None or after is None:
            return 0.0
        self._waited = {**self._waited, **after.waited}
        return starved_s(self._before, evolve(after, waited=self._waited))


def starved_s(before: Look, after: Look) -> float:
    """Return for how long our processes had to wait for others between two looks; 0.0 where that is little."""
    passed = after.at - before.at
    waited: dict[int, float] = {}
    for (pid, thread), total in after.waited.items():
        grown = total - before.waited.get((pid, thread), 0.0)
        waited[pid] = max(waited.get(pid, 0.0), grown)  # the threads of a process wait at the same time
    longest = min(sum(waited.values()), passed)
    others = (after.busy - before.busy) - (after.own - before.own)
    if longest < STARVED * passed or others < OTHERS * passed * after.processors:
        return 0.0
    return longest


def of_time(error: BaseException) -> Iterator[BaseException]:
    """Give the deadlines that passed among an error and its cause: a failure of time has one.

    No further back: a wrong error that was made of a right deadline is wrong, not late.
    """
    for one in (error, error.__cause__):
        if isinstance(one, TimeoutError | Late):
            yield one


async def within(work: Awaitable[T], deadline: Deadline) -> T:
    """Await something until a deadline.

    Raises:
        TimeoutError: it was over first; the work was cancelled.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timer:

        def due() -> None:
            if left := deadline.left():
                calls.append(loop.call_later(left, due))
            else:
                timer.reschedule(loop.time())

        calls = [loop.call_later(deadline.left(), due)]
        try:
            return await work
        finally:
            calls[-1].cancel()


@contextmanager
def unwatched() -> Iterator[None]:
    """No other thread looks at the machine in the block: it would open files, which whoever counts them would count."""
    with _looking:
        yield


def _forked() -> None:
    """In a forked process nobody looks, whatever the one it came from was at."""
    global _looking
    _looking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def look_now() -> Look | None:
    """Return what the system tells now; None where it tells nothing."""
    with _looking:
        return _seen()


def _seen() -> Look | None:
    try:
        processors = os.sched_getaffinity(0)
        pids = tuple(_family(os.getpid()))
        waited = {key: seconds for pid in pids for key, seconds in _waited(pid)}
        own = sum(map(_used, pids))
        busy = _busy(processors)
    except (AttributeError, OSError, ValueError, IndexError):
        return None
    if not waited:
        return None
    return Look(at=time.monotonic(), waited=waited, own=own, busy=busy, processors=len(processors))


_last: tuple[float, int, Look | None] = (-FRESH_S, 0, None)


def look_lately() -> Look | None:
    """Return a look of this process that is not older than `FRESH_S`: deadlines begin by the hundred."""
    global _last
    at, pid, look = _last
    if time.monotonic() - at > FRESH_S or pid != os.getpid():
        look = look_now()
        _last = (time.monotonic(), os.getpid(), look)
    return look


def _family(pid: int) -> Iterator[int]:
    """Give a process and its living descendants."""
    yield pid
    for task in _listed(_PROC / str(pid) / "task"):
        for child in _read(task / "children").split():
            yield from _family(int(child))


def _waited(pid: int) -> Iterator[tuple[tuple[int, int], float]]:
    for task in _listed(_PROC / str(pid) / "task"):
        words = _read(task / "schedstat").split()
        if len(words) >= 2:
            yield (pid, int(task.name)), int(words[1]) / 1e9


def _used(pid: int) -> float:
    """Return the processor time of a process and of those it has collected."""
    words = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / _TICKS


def _busy(processors: set[int]) -> float:
    """Return the time some processors worked for anybody, time stolen by other machines included."""
    total = 0
    for line in (_PROC / "stat").read_text("ascii").splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in processors:
            user, nice, system, _idle, _waiting, *rest = map(int, words[:8])
            total += user + nice + system + sum(rest)
    return total / _TICKS


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # it ended meanwhile


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
