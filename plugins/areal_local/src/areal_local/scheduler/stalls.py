"""A run that does not move: found out, its processes' stacks written down, and who waits for whom told.

It does not move when no worker answered a call for `progress_timeout_s`, or when a training worker let the deadline of
its call pass. Workers write their stacks into their own logs, the controller into `controller.log` beside them.

Knows: calls, answers and deadlines; the signal that makes a worker write its stacks.
Does not know: what a call is for, or how a run is started again (`poll` raises, the run decides).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from areal_core.contract.errors import ArealError, RolloutError, WorkerTimeout
from areal_local.scheduler.rpc import RpcClient

CONTROLLER_LOG = "controller.log"

logger = logging.getLogger(__name__)


class StallSettings(Protocol):
    """What a scheduler's config says of runs that do not move."""

    @property
    def log_dir(self) -> str:
        """Folder of the logs."""

    @property
    def progress_timeout_s(self) -> float:
        """Without an answer for so long, the run does not move; 0 waits for ever."""

    @property
    def stalled(self) -> str:
        """`restart` or `end`."""


class Asked(Protocol):
    """A worker as its calls show it."""

    @property
    def id(self) -> str:
        """`<role>/<rank>`."""

    @property
    def client(self) -> RpcClient:
        """Its calls."""

    def write_stacks(self) -> None:
        """Have it write the stacks of its threads into its log."""


class StallWatch:
    """Watches the calls of one scheduler's workers; `error` is what `poll` raises of whoever `ends` says.

    Args:
        workers: returns those that take calls now.
    """

    def __init__(self, config: StallSettings, workers: Callable[[], Sequence[Asked]]) -> None:
        self._bound_s, self._restart = config.progress_timeout_s, config.stalled == "restart"
        self._logs, self._workers = Path(config.log_dir), workers
        self._answered, self._moved_s, self._told = 0, -1.0, False
        self._held_up: frozenset[str] = frozenset()
        self._overdue = False
        self.error: ArealError | None = None

    def look(self, now: float) -> None:
        """Take note of answers since the last look; without one for too long, the run does not move.

        An engine that starts has a deadline of its own, and counts as moving.
        """
        workers = self._workers()
        answered = sum(worker.client.num_answered for worker in workers)
        starting = any(method == "start" for worker in workers for method, _ in worker.client.in_flight)
        if starting or not workers or answered != self._answered or self._moved_s < 0:
            self._answered, self._moved_s = answered, now
        elif self._bound_s and now - self._moved_s >= self._bound_s and not self._told:
            self._held_up = frozenset(worker.id for worker in workers if worker.client.in_flight)
            what, why = f"nothing moved for {now - self._moved_s:.0f} s", self._tell()
            kind = WorkerTimeout if self._restart else RolloutError
            self.error = kind(what, why=why, fix=self._fix("scheduler.options.progress_timeout_s"))
        self._overdue = self._overdue or (self.error is not None and now - self._moved_s >= 2 * self._bound_s)

    def ends(self, workers: Sequence[Asked], *, training: bool) -> bool:
        """Tell whether these workers end with `error`.

        Where the run is to end, not trainers that nobody waited for: they are well, and their state is saved first.
        If nothing moves for as long again, they do too.
        """
        spared = training and not self._restart and not self._overdue
        return self.error is not None and not (spared and self._held_up.isdisjoint(worker.id for worker in workers))

    def check(self, engine_role: str, workers: Sequence[Asked]) -> None:
        """Raise `error`, a copy of it, if the workers of a role end with it."""
        found = self.error
        if found is not None and self.ends(workers, training=engine_role == "train"):
            raise type(found)(found.what, why=found.why, fix=found.fix)

    def late(self, worker: Asked, method: str) -> None:
        """Hear that a training worker let the deadline of a call pass; its caller is told right after."""
        if self._told:
            return
        what, why = f"{worker.id} did not answer {method!r} in time", self._tell()
        if self._restart and method != "start":
            self.error = WorkerTimeout(what, why=why, fix=self._fix("scheduler.step_timeout_s"))

    def _fix(self, key: str) -> str:
        return f"read the stacks of all processes in {self._logs}; raise {key} if it is merely slow"

    def _tell(self) -> str:
        """Have all stacks written, once; return who waits for whom."""
        self._told = True
        why = who_waits(self._workers())
        logger.warning("the run does not move: %s; the stacks of its processes are in %s", why, self._logs)
        for worker in self._workers():
            worker.write_stacks()
        path = self._logs / CONTROLLER_LOG
        with contextlib.suppress(OSError):
            path.touch(mode=0o600)
            with path.open("a") as file:
                write_own_stacks(file, why)
        return why


def who_waits(workers: Sequence[Asked]) -> str:
    """Say which calls wait for which workers.

    Example: "actor/0 was asked for 1 train_step (1803 s); rollout/0 was asked for 16 generate (12 s)"
    """
    told = []
    for worker in workers:
        counts = Counter(method for method, _ in worker.client.in_flight)
        longest = dict(sorted(worker.client.in_flight, key=lambda call: call[1]))
        asked = ", ".join(f"{count} {method} ({longest[method]:.0f} s)" for method, count in counts.items())
        told += [f"{worker.id} was asked for {asked}"] if asked else []
    return "; ".join(told) or "no worker is waited for: a workflow, a reward or the controller itself holds the run"


def write_own_stacks(file: TextIO, why: str) -> None:
    """Write where every thread and every asyncio task of this process stands."""
    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} the run does not move: {why}\n")
    for task in asyncio.all_tasks():
        file.write("\n".join([f"task {task.get_name()}", *_where(task)]) + "\n")
    file.flush()
    faulthandler.dump_traceback(file)


def _where(task: asyncio.Task[object]) -> Iterator[str]:
    """Yield the lines a task stands at, its own first and what it waits for last."""
    awaited: object = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        yield f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaited = getattr(awaited, "cr_await", None)
