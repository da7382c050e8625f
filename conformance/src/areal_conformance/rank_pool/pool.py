"""Runs programs on every rank of a role, in processes kept between checks, and notices who does not come back.

    pool = RankPool(target, shared_folder)
    results = pool.run("areal_conformance.ranks.steps:train", 2, {"layout": {"d": 2}}, folder, deadline_s=30.0)

Knows: deadlines, the meeting of ranks (`RankBench.share`), which end of a program means what.
Does not know: programs.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs
from attrs import define, field

from areal_conformance.deadline import Deadline, Late
from areal_conformance.outcome import HarnessError, Inconclusive, Violation
from areal_conformance.rank_pool import wire
from areal_conformance.rank_pool.fork_server import HASH_SEEDS, Child, ForkServer, fork_server, tail
from areal_conformance.target import Target

APART_S = 15.0
"""Ranks do the same things; one that is this much later than another at the same point waits for what never comes."""

_AFTER_ERROR_S = 2.0


@define
class _Gang:
    """The processes of one world size, and who forked each. `clean` is False once their state is in doubt."""

    children: list[Child]
    servers: list[ForkServer]
    clean: bool = True


@define
class _Course:
    """How far one program has come, rank by rank."""

    running: set[int]
    apart_s: float
    deadline: Deadline
    waiting: dict[int, Any] = field(factory=dict)
    """Rank -> what it shares; it waits for the others."""
    done: dict[int, Any] = field(factory=dict)
    errors: dict[int, dict[str, str]] = field(factory=dict)
    dead: set[int] = field(factory=set)
    clean: bool = True
    meeting: Deadline | None = None
    """Runs from the arrival of the first rank at a meeting, or at the end."""
    starved: bool = False
    cut_short: bool = False
    """As those of `Deadline`, when the program ended."""

    def look(self) -> None:
        """Remember how busy the machine was."""
        self.starved = self.deadline.starved
        self.cut_short = (self.meeting or self.deadline).cut_short

    def others_are_due(self) -> None:
        """Let the ranks that have not come yet be late from now on, or sooner after an error."""
        self.meeting = Deadline(_AFTER_ERROR_S if self.errors else self.apart_s)

    def left(self) -> float:
        """Return for how long to wait for the next message; 0.0 if it is too late for one."""
        return min(one.left() for one in (self.deadline, self.meeting) if one is not None)


class RankPool:
    """The ranks of one target. Gangs are started when first needed and replaced after anything unclean."""

    def __init__(self, target: Target, shared_folder: Path) -> None:
        self._target = target
        self._shared = shared_folder
        self._gangs: dict[tuple[int, bool], _Gang] = {}

    def run(
        self,
        program: str,
        world_size: int,
        arguments: Mapping[str, Any],  # Any: plain json
        folder: Path,
        deadline_s: float,
        *,
        apart_s: float = APART_S,
        may_die: tuple[int, ...] = (),
        unlike: bool = False,
    ) -> list[Any]:
        """Run `module:function` on every rank and return the results in rank order; None for a rank that died.

        Args:
            apart_s: how long the first rank at a meeting, or at the end, waits for the last one.
            may_die: ranks the program kills; the death of another one is an error.
            unlike: whether every other rank has another hash seed, as ranks of a run have; forks of one process do not.

        Raises:
            Violation: ranks did not return, naming law 9, or one died; or a program raised that, or anything else.
            Inconclusive, HarnessError: a program raised it.
        """
        patience = self._target.adapter.patience
        gang = self._gang(world_size, unlike)
        gang.clean = False  # until the program has ended well
        order = {
            "program": program,
            "locator": attrs.asdict(self._target.locator),
            "arguments": dict(arguments),
            "folder": str(folder),
            "shared": str(self._shared),
            "world_size": world_size,
        }
        for rank, child in enumerate(gang.children):
            wire.send(child.connection, {**order, "rank": rank})
        running = set(range(world_size))
        course = _Course(running=running, apart_s=apart_s * patience, deadline=Deadline(deadline_s))
        _follow(gang.children, course)
        gang.clean = course.clean and not course.dead and not course.errors and not course.running
        if not gang.clean:
            course.look()  # while the ranks live
            self._end(world_size, unlike)
        _judge(gang.children, course, may_die, deadline_s)
        return [course.done.get(rank) for rank in range(world_size)]

    def close(self) -> None:
        """Kill every rank. Idempotent."""
        for key in tuple(self._gangs):
            self._end(*key)

    def _gang(self, world_size: int, unlike: bool) -> _Gang:
        gang = self._gangs.get((world_size, unlike))
        if gang is not None and gang.clean:
            return gang
        self._end(world_size, unlike)
        servers = [fork_server(HASH_SEEDS[rank % 2 if unlike else 0]) for rank in range(world_size)]
        warm = "areal_proof.mutants:all_mutants" if self._target.locator.mutant else ""
        gang = _Gang(children=[server.fork(warm) for server in servers], servers=servers)
        self._gangs[world_size, unlike] = gang
        return gang

    def _end(self, world_size: int, unlike: bool) -> None:
        gang = self._gangs.pop((world_size, unlike), None)
        if gang is not None:
            for server in dict.fromkeys(gang.servers):
                server.end([child for child, its in zip(gang.children, gang.servers, strict=True) if its is server])


def _follow(children: list[Child], course: _Course) -> None:
    """Take messages until every rank has ended, or time is up."""
    with selectors.DefaultSelector() as selector:
        for rank, child in enumerate(children):
            selector.register(child.connection, selectors.EVENT_READ, rank)
        while course.running or course.waiting:
            if course.waiting and not course.running:
                _release(children, course)
            left = course.left()
            ready = selector.select(left)
            if not ready and not left:
                return
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if not _take(connection, key.data, course):
                    selector.unregister(connection)
            if course.meeting is None and len(course.running) < len(children):
                course.others_are_due()


def _take(connection: socket.socket, rank: int, course: _Course) -> bool:
    """Take one message of one rank; return False if it has died."""
    course.running.discard(rank)
    try:
        message = wire.receive(connection)
    except wire.Gone:
        course.waiting.pop(rank, None)
        course.dead.add(rank)
        return False
    if "share" in message:
        course.waiting[rank] = message["share"]
    elif "error" in message:
        course.errors[rank] = message["error"]
        course.others_are_due()
    else:
        course.done[rank] = message["done"]
        course.clean = course.clean and message["clean"]
    return True


def _release(children: list[Child], course: _Course) -> None:
    """Everyone who lives has come: give all of them everything, or tell who will not come any more."""
    missing = sorted({*course.done, *course.errors})
    if missing:
        answer: dict[str, Any] = {"abandoned": f"rank {missing[0]} has ended"}
    else:
        answer = {"shared": [course.waiting.get(rank) for rank in range(len(children))]}
    released, course.waiting = course.waiting, {}
    course.running.update(released)
    course.meeting = None
    if missing or course.dead:
        course.others_are_due()
    for rank in released:
        with contextlib.suppress(wire.Gone):  # its death is seen when its socket is read
            wire.send(children[rank].connection, answer)


def _judge(children: list[Child], course: _Course, may_die: tuple[int, ...], deadline_s: float) -> None:
    """Raise what the end of the program means."""
    for rank, error in sorted(course.errors.items(), key=lambda one: (one[1]["kind"] == "late", one[0])):
        if error["kind"] != "abandoned":
            _raise(rank, error, children, sorted(course.running), starved=course.starved)
    stuck = sorted({*course.running, *course.waiting})
    surprises = sorted(course.dead - set(may_die))
    if surprises:
        rank = surprises[0]
        raise Violation(f"the process of rank {rank} died{_log_of(children[rank])}")
    if stuck:
        running = sorted(course.running or course.waiting)
        others = sorted({*range(len(children))} - {*running})
        waited = f"; rank {_listed(others)} left it {course.apart_s:g} s earlier and more" if others else ""
        raise Late(
            f"rank {_listed(running)} hangs in a call{waited or f' after {deadline_s:g} s'}"
            + "".join(_log_of(children[rank]) for rank in running),
            starved=course.cut_short,
            law=9,
        )
    if course.errors:
        raise HarnessError(next(iter(course.errors.values()))["text"])


def _raise(rank: int, error: dict[str, str], children: list[Child], stuck: list[int], *, starved: bool) -> NoReturn:
    left = f"; rank {', '.join(map(str, stuck))} did not return" if stuck else ""
    text = f"rank {rank}: {error['text']}{left}"
    if error["kind"] == "inconclusive":
        raise Inconclusive(text)
    if error["kind"] == "harness":
        raise HarnessError(text + _log_of(children[rank]))
    law = int(error["law"]) if error["law"] else None
    raise Late(text, starved=starved, law=law) if error["kind"] == "late" else Violation(text, law=law)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _log_of(child: Child) -> str:
    end = tail(child.log, 600)
    return f"\n  end of its output: {end}" if end else ""
