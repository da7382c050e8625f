"""The scheduler's machine: any order of submit, call, kill, cancel and poll, against a model of three lines a role.

The model says which roles run and which of their ranks are dead. Hypothesis chooses the orders, derandomised; each
begins with a scheduler of its own and ends with its close, after which no process of any of them may live.

Knows: operations, and what the model expects of each.
Does not know: how a scheduler does them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen
from hypothesis import strategies as st

from areal_conformance.benches.scheduler import CALL_S, SchedulerBench, ask
from areal_conformance.machines.examples import examples
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, ConfigError, WorkerDied
from areal_core.contract.scheduler import Scheduler, Worker, WorkerState

ROLES = ("a", "b")
_TRACE = (
    ("kill", 0),
    ("call", 0),
    ("call", 1),
    ("submit", 0),
    ("cancel", 0),
    ("submit", 1),
    ("call", 1),
    ("cancel", 0),
)
"""An order that is always run: a worker dies, its role is refused, cancelled, started anew, and ended."""


@frozen
class Step:
    """One operation: its name, a role, a number whose meaning is the operation's."""

    name: str
    role: str
    number: int


@define
class _Gang:
    workers: list[Worker]
    pids: list[int]
    dead: set[int] = field(factory=set)


class SchedulerMachine:
    """Runs steps on one scheduler and checks each against the model."""

    def __init__(self, bench: SchedulerBench, scheduler: Scheduler) -> None:
        self._bench = bench
        self._scheduler = scheduler
        self._running: dict[str, _Gang] = {}
        self._ended: list[Worker] = []
        self.pids: list[int] = []
        self._steps: Mapping[str, Callable[[str, int], Awaitable[None]]] = {
            "submit": self._submit,
            "call": self._call,
            "kill": self._kill,
            "cancel": self._cancel,
            "cancel twice": self._cancel_twice,
        }

    async def run(self, steps: Sequence[Step]) -> None:
        """Make every step, and look at every role after each."""
        for step in steps:
            await self._steps[step.name](step.role, step.number)
            await self._look()

    async def _submit(self, role: str, number: int) -> None:
        job = self._bench.job(role, num_workers=1 + number % 2)
        if role in self._running:
            work = self._scheduler.submit(job)
            await self._bench.raised(ConfigError, work, f"submit of the running role {role!r}")
            return
        workers = await self._bench.start(self._scheduler, job)
        pids = [(await ask(worker, "facts"))["pid"] for worker in workers]
        expect(not set(pids) & set(self.pids), f"a new gang of {role!r} has processes of an old one: {pids}")
        self._running[role] = _Gang(workers, pids)
        self.pids += pids

    async def _call(self, role: str, number: int) -> None:
        gang = self._running.get(role)
        if gang is None:
            await self._call_ended(number)
            return
        rank = number % len(gang.workers)
        if rank in gang.dead:
            work = ask(gang.workers[rank], "echo", value=number)
            await self._bench.raised(WorkerDied, work, "a call of a dead worker")
            return
        facts = await ask(gang.workers[rank], "facts")
        expect(facts["pid"] == gang.pids[rank], f"{role}/{rank} is answered by {facts['pid']}, not {gang.pids[rank]}")

    async def _call_ended(self, number: int) -> None:
        if not self._ended:
            return
        worker = self._ended[number % len(self._ended)]
        work = ask(worker, "facts", timeout_s=CALL_S)
        await self._bench.raised(ArealError, work, "a call of a worker that was cancelled")

    async def _kill(self, role: str, number: int) -> None:
        gang = self._running.get(role)
        if gang is None:
            return
        rank = number % len(gang.workers)
        if rank not in gang.dead:
            os.kill(gang.pids[rank], signal.SIGKILL)
            gang.dead.add(rank)

    async def _cancel(self, role: str, _number: int) -> None:
        gang = self._running.pop(role, None)
        await self._bench.soon(self._scheduler.cancel(role), f"cancel of {role!r}")
        if gang is not None:
            self._ended += gang.workers
            await self._bench.gone(gang.pids, f"after cancel of {role!r}")

    async def _cancel_twice(self, role: str, number: int) -> None:
        await asyncio.gather(self._cancel(role, number), self._scheduler.cancel(role))

    async def _look(self) -> None:
        for role in ROLES:
            gang = self._running.get(role)
            statuses = self._scheduler.poll(role)
            count = 0 if gang is None else len(gang.workers)
            expect(len(statuses) == count, f"poll({role!r}) tells of {len(statuses)} workers, {count} were started")
            for rank, pid in enumerate(gang.pids if gang else ()):
                dead = gang is not None and rank in gang.dead
                state = WorkerState.ENDED if dead else WorkerState.RUNNING
                status = await self._bench.told(self._scheduler, role, rank, state)
                expect(status.pid == pid, f"poll tells that {role}/{rank} is process {status.pid}, it is {pid}")


def explore(bench: SchedulerBench, *, num_examples: int, max_steps: int) -> None:
    """Let hypothesis choose orders of steps, and run each on a new scheduler. Call it outside of an event loop."""
    steps = st.lists(
        st.builds(
            Step,
            st.sampled_from(("submit", "call", "kill", "cancel", "submit", "call", "cancel twice")),
            st.sampled_from(ROLES),
            st.integers(0, 3),
        ),
        min_size=max_steps // 2,
        max_size=max_steps,
    )

    for order in ([Step(name, ROLES[0], number) for name, number in _TRACE], *examples(steps, count=num_examples)):
        asyncio.run(_once(bench, order))


async def _once(bench: SchedulerBench, order: Sequence[Step]) -> None:
    pids: list[int] = []
    try:
        async with bench.scheduler() as scheduler:
            machine = SchedulerMachine(bench, scheduler)
            pids = machine.pids
            first: list[Any] = [Step("submit", ROLES[0], 1)]
            await machine.run([*first, *order])
    except Violation as error:
        raise Violation(f"{error}; the steps: {[(s.name, s.role, s.number) for s in order]}") from error
    await bench.gone(pids, "after close")
