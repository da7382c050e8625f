"""From a worker's state to the error that names it, and one place to hear of it.

Knows: which states are failures, and what to tell about them.
Does not know: how a scheduler finds out (`Scheduler.poll` tells), or what the run does about it.
"""

from __future__ import annotations

import signal
from typing import NoReturn

from areal_core.contract.errors import WorkerDied, WorkerError, WorkerTimeout
from areal_core.contract.scheduler import Scheduler, WorkerState, WorkerStatus
from areal_core.runtime.clock import Clock, SystemClock

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
            f"worker {status.id} (rank {status.rank}, process {status.pid}) gives no sign of life",
            why=_last_words(status),
            fix=f"it may be stopped or its machine out of memory: ps -o stat,wchan -p {status.pid}",
        )
    return None


class Supervisor:
    """Watches roles of one scheduler; the loop races its own work against `failed`.

    Example:
        supervisor = Supervisor(scheduler)
        supervisor.watch("actor")
        supervisor.watch("rollout", min_alive=1)   # the pool serves on with fewer replicas
        await supervisor.failed()                  # raises when it comes to that
    """

    def __init__(self, scheduler: Scheduler, *, clock: Clock | None = None, period_s: float = PERIOD_S) -> None:
        self._scheduler = scheduler
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._min_alive: dict[str, int | None] = {}

    def watch(self, role: str, *, min_alive: int | None = None) -> None:
        """Count a role's failures as fatal: any of them, or only one that leaves fewer than `min_alive` workers."""
        self._min_alive[role] = min_alive

    def unwatch(self, role: str) -> None:
        """Stop watching a role, before it is cancelled on purpose. Idempotent."""
        self._min_alive.pop(role, None)

    def check(self) -> None:
        """Look once at every watched role.

        Raises:
            WorkerDied: a worker ended.
            WorkerTimeout: a worker fell silent.
        """
        for role, min_alive in self._min_alive.items():
            statuses = self._scheduler.poll(role)
            failures = [error for status in statuses if (error := failure(status)) is not None]
            needed = len(statuses) if min_alive is None else min_alive
            if failures and len(statuses) - len(failures) < needed:
                raise failures[0]

    async def failed(self) -> NoReturn:
        """Return never; raise the first fatal error, within a period of the scheduler knowing of it."""
        while True:
            self.check()
            await self._clock.sleep(self._period_s)


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
        return f"read {status.log_path}; if nobody killed it, the kernel did for want of memory: dmesg | tail"
    if any("No module named 'areal_core" in line for line in status.log_tail):
        return "install areal-core and the backend's plugin for that interpreter: PYTHON -m pip install areal-core"
    return f"read {status.log_path}"
