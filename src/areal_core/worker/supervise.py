"""From a worker's state to the error that names it, and one place to hear of it.

Public, for schedulers.

Knows: which states are failures, and what to tell about them.
Does not know: how a scheduler finds out (`Scheduler.poll` tells), or what the run does about it.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import WorkerDied, WorkerError, WorkerTimeout
from areal_core.contract.scheduler import Scheduler, WorkerState, WorkerStatus
from areal_core.plugins.install import pip_install

PERIOD_S = 0.2


def failure(status: WorkerStatus) -> WorkerError | None:
    """Return the error a worker's state amounts to, with its last log lines; None while all is well."""
    if status.state is WorkerState.ENDED:
        return WorkerDied(
            f"worker {status.id} (rank {status.rank}, process {status.pid}) {_ending(status.exit_code)}",
            why=_last_words(status),
            fix=_advice(status),
        )
    if status.state is WorkerState.SILENT:
        return WorkerTimeout(
            f"worker {status.id} (rank {status.rank}, process {status.pid}) stopped responding",
            why=_last_words(status),
            fix=f"it may be stopped or its machine out of memory: ps -o stat,wchan -p {status.pid}",
        )
    return None


class Supervisor:
    """Watches roles of one scheduler; the loop races its own work against `failed`.

    Example:
        supervisor = Supervisor(scheduler)
        supervisor.watch("actor")
        supervisor.watch_with(fleet.check)         # of a fleet that may lose replicas and replace them
        await supervisor.failed()                  # raises when it comes to that
    """

    def __init__(self, scheduler: Scheduler, *, clock: Clock | None = None, period_s: float = PERIOD_S) -> None:
        self._scheduler = scheduler
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._roles: set[str] = set()
        self._checks: list[Callable[[], None]] = []

    def watch(self, role: str) -> None:
        """Count every failure of a role as fatal."""
        self._roles.add(role)

    def watch_with(self, check: Callable[[], None]) -> None:
        """Call `check` at every look as well: it looks after workers that may be lost, and raises if it is fatal."""
        self._checks.append(check)

    def check(self, *, others: bool = True) -> None:
        """Look once at every watched role, and make the other checks.

        Raises:
            WorkerDied: a worker ended.
            WorkerTimeout: a worker fell silent.
            ArealError: what another check raised.
        """
        for role in sorted(self._roles):
            for status in self._scheduler.poll(role):
                if (error := failure(status)) is not None:
                    raise error
        for check in self._checks if others else ():
            check()

    async def failed(self, *, others: bool = True) -> NoReturn:
        """Return never; raise the first fatal error, within a period of the scheduler knowing of it."""
        while True:
            self.check(others=others)
            await self._clock.sleep(self._period_s)

    async def while_live(self, work: Coroutine[Any, Any, int], wind_down: Callable[[], None]) -> int:
        """Await the work, or raise the first fatal error: of a dead worker with its last log lines. Any: asyncio's own.

        While the watched roles live, the work is asked to wind down before the error of another check is raised.
        """
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self.failed())]
        task, watch = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watch.done() and not task.done():
                self.check(others=False)
                wind_down()
                tasks.append(asyncio.ensure_future(self.failed(others=False)))
                await asyncio.wait([task, tasks[-1]], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            if task.exception() is not None:
                self.check()
            return task.result()
        finally:
            for waiter in tasks:
                waiter.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _ending(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_words(status: WorkerStatus) -> str:
    if not status.log_tail:
        return "it wrote nothing to its log"
    lines = "\n".join(f"    {line}" for line in status.log_tail)
    return f"the last lines of its log:\n{lines}"


def _advice(status: WorkerStatus) -> str:
    if status.exit_code == -signal.SIGKILL:
        return f"read {status.log_path}; if nobody killed it, the kernel did for lack of memory: dmesg | tail"
    if any(re.search(r"No module named 'areal_(core|local)", line) for line in status.log_tail):
        command = pip_install("areal-core[local]")
        return f"install areal-core[local] and the backend's plugin for that interpreter: PYTHON -m {command}"
    return f"read {status.log_path}"
