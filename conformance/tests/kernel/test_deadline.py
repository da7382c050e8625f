"""Deadlines count the time that others kept the processors from us; what they keep us from by themselves is theirs."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import threading
import time

import pytest

from areal_conformance.benches.process import descriptors
from areal_conformance.deadline import MOST, Deadline, Late, Look, look_now, of_time, starved_s, unwatched, within
from areal_conformance.runner import Runner

LINUX = pytest.mark.skipif(look_now() is None, reason="the system tells nothing of its processors")


def look(at: float, *waited: float, own: float = 0.0, busy: float = 0.0) -> Look:
    """Return a look at two processors, with a wait for each of our processes."""
    return Look(at=at, waited=dict(enumerate_keys(waited)), own=own, busy=busy, processors=2)


def enumerate_keys(waited: tuple[float, ...]) -> list[tuple[tuple[int, int], float]]:
    """Return the waits by process, one thread in each."""
    return [((number, number), seconds) for number, seconds in enumerate(waited)]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(look(10, 7.0, own=3, busy=20), 7.0, id="others had what we waited for"),
        pytest.param(look(10, 4.0, 3.0, own=3, busy=20), 7.0, id="two processes that take turns"),
        pytest.param(look(10, 9.0, 9.0, own=2, busy=20), 10.0, id="never more than the time itself"),
        pytest.param(look(10, 0.1, own=0, busy=20), 0.0, id="a hang waits for nothing"),
        pytest.param(look(10, 7.0, 7.0, own=20, busy=20), 0.0, id="our own processes had it"),
        pytest.param(look(10, 0.0, own=10, busy=10), 0.0, id="a quiet machine"),
    ],
)
def test_starved_is_who_waited_while_others_worked(after: Look, expected: float) -> None:
    """Neither a wait nor a busy machine is enough alone."""
    assert starved_s(look(0), after) == pytest.approx(expected)


def test_threads_of_a_process_wait_at_the_same_time() -> None:
    """A hundred idle threads that are each a little late are no long wait."""
    waited = {(1, thread): 0.1 for thread in range(100)}
    after = Look(at=10.0, waited=waited, own=0.0, busy=20.0, processors=2)

    assert starved_s(look(0), after) == 0.0


class Machine:
    """A machine on which we wait for a part of every second from now on."""

    def __init__(self, part: float) -> None:
        self.part, self.began = part, time.monotonic()

    def look(self) -> Look:
        """Return what it tells now."""
        passed = time.monotonic() - self.began
        return look(self.began + passed, self.part * passed, busy=2 * passed)


def spent(deadline: Deadline) -> float:
    """Wait until a deadline is over; return how long it took."""
    began = time.monotonic()
    while left := deadline.left():
        time.sleep(left)
    return time.monotonic() - began


@pytest.mark.parametrize(("part", "times", "short"), [(0.0, 1.0, False), (0.6, 2.5, False), (0.95, MOST, True)])
def test_a_deadline_goes_on_by_what_was_taken(part: float, times: float, short: bool) -> None:
    """Of six tenths: two and a half times as long, and it was kept. Five times at most: then it says nothing."""
    deadline = Deadline(0.2, look=Machine(part).look)

    assert 0.2 * times - 0.02 <= spent(deadline)
    assert deadline.starved == (part > 0)
    assert deadline.late("m").starved == short


def test_what_a_process_waited_counts_also_when_it_has_ended() -> None:
    """A worker that answered too late is ended before anybody asks why: what was seen of it is kept."""
    began = time.monotonic()
    looks = iter([look(began), look(began + 10, 0.0, 9.0, busy=20), look(began + 10, 0.0, busy=20)])
    deadline = Deadline(60.0, look=lambda: next(looks))
    deadline.watch()

    assert deadline.starved


def test_who_makes_a_check_watches_while_it_runs() -> None:
    """Without looking in between nothing would be seen of processes that came and went."""
    watched = threading.Event()
    looks = itertools.count()

    def seen() -> Look:
        if next(looks):
            watched.set()
        return look(time.monotonic())

    runner = Runner()
    try:
        assert runner.run(lambda: watched.wait(60.0), Deadline(120.0, look=seen))
    finally:
        runner.close()


def test_where_the_system_tells_nothing_a_deadline_is_a_clock() -> None:
    """And nothing is excused."""
    deadline = Deadline(0.05, look=lambda: None)

    assert spent(deadline) >= 0.05
    assert not deadline.starved


def test_what_is_awaited_is_cancelled_at_the_end_and_not_before() -> None:
    """On a machine that takes half the time, what takes one and a half times as long still comes."""

    async def late(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "came"

    assert asyncio.run(within(late(0.3), Deadline(0.2, look=Machine(0.6).look))) == "came"
    with pytest.raises(TimeoutError):
        asyncio.run(within(late(60.0), Deadline(0.05, look=lambda: None)))


def test_a_failure_of_time_is_found_behind_another() -> None:
    """Whatever a backend makes of the deadline that it missed."""
    try:
        try:
            raise TimeoutError
        except TimeoutError as error:
            raise ValueError("no answer") from error
    except ValueError as error:
        assert any(of_time(error))
    assert not any(of_time(ValueError("wrong")))
    wrong = ValueError("no such worker")
    wrong.__cause__ = KeyError("another error was due")
    wrong.__cause__.__cause__ = TimeoutError()
    assert not any(of_time(wrong))
    assert any(of_time(Late("l", starved=False)))


def _spin(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


@LINUX
def test_the_real_machine_tells_our_own_work_from_that_of_others() -> None:
    """Children of this process that take every processor from it are its own doing: nothing is excused."""
    before = look_now()
    children = [
        multiprocessing.get_context("fork").Process(target=_spin, args=(600.0,)) for _ in os.sched_getaffinity(0)
    ]
    for child in children:
        child.start()
    _spin(time.process_time() + 0.3)
    after = look_now()
    for child in children:
        child.kill()
        child.join()

    assert before is not None
    assert after is not None
    assert {pid for pid, _ in after.waited} >= {os.getpid(), *(child.pid for child in children)}
    assert after.own - before.own >= 0.25
    assert after.busy - before.busy >= after.own - before.own - 0.1


def test_looks_are_plain_numbers() -> None:
    """A process that ends between two looks takes nothing away that it had waited for."""
    gone, stays = look(0, 3.0, 1.0), look(10, 3.0, busy=20)

    assert starved_s(gone, stays) == 0.0


def test_what_a_look_opens_is_counted_by_nobody() -> None:
    """Another thread looks while a check runs; whoever counts what is open counts none of its files."""
    looks, over = itertools.count(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            look_now()
            next(looks)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        seen = {descriptors() for _ in range(300)}
    finally:
        over.set()
        watcher.join()

    assert next(looks), "nobody looked"
    assert len(seen) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of forks beside threads
def test_a_process_that_is_forked_while_somebody_looks_may_look_itself() -> None:
    """The one who looks is not there to end it."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with unwatched():
            held.set()
            over.wait(60.0)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60.0)
    try:
        if not (pid := os.fork()):
            signal.alarm(60)  # what ends it, should it wait for ever
            look_now()
            os._exit(0)
        assert os.waitpid(pid, 0) == (pid, 0), "the forked process waits for one that is not there"
    finally:
        over.set()
        holder.join()
