"""Broken schedulers that miss the ends of workers, or leave something of them.

Knows: how the scheduler of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from typing import Any

import attrs

from areal_core.contract.errors import ArealError, WorkerDied
from areal_core.contract.scheduler import Job, Worker, WorkerState, WorkerStatus
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.process import WorkerProcess
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, put, row, then, within
from areal_proof.second.scheduler import SecondScheduler, SecondWorker

breaks = breaking("scheduler/local", LocalScheduler)
breaks_second_on_one = breaking("scheduler/second", SecondScheduler)
breaks_second = breaking("scheduler/second", SecondScheduler, part=("worker_class", SecondWorker))


@mutant("scheduler/local", killers=("scheduler.death.in_flight",), row="dead-peer", incident="verl#7155")
class DeathUnseen(LocalScheduler):
    """Never looks at its workers: a call of a dead one waits for its own deadline."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in self.gangs[job.role].workers:
            worker.look = lambda now, silent_after_s: None  # type: ignore[method-assign]
        return workers

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        gang = self.gangs.get(role)
        states = [] if gang is None else gang.workers
        return tuple(
            WorkerStatus(id=w.id, role=role, rank=rank, state=WorkerState.RUNNING, pid=w.process.pid)
            for rank, w in enumerate(states)
        )


@mutant("scheduler/second", killers=("scheduler.death.in_flight",), row="dead-peer", incident="tinker-cookbook#945")
class NeighboursDieToo(SecondScheduler):
    """Ends the calls of the whole gang when one worker dies."""

    class worker_class(SecondWorker):
        def obituary(self) -> ArealError:
            for neighbour in self.gang:
                for reply in neighbour.calls.values():
                    if not reply.done():
                        reply.set_exception(WorkerDied("a neighbour ended"))
            return super().obituary()

        gang: tuple[SecondWorker, ...] = ()

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in workers:
            worker.gang = workers  # type: ignore[attr-defined]
        return workers


@breaks("close", "scheduler.log.lines")
async def LogsGoWithClose(original: Original, self: LocalScheduler) -> None:
    """Removes the logs when it is closed."""
    await original()
    await asyncio.to_thread(shutil.rmtree, self.config.log_dir, ignore_errors=True)


@breaks_second("status", "scheduler.silence.noticed", silent=False)
def SilenceForEver(original: Original, self: Any) -> Any:
    """Never takes a worker back that was silent once."""
    status = original()
    self.silent = self.silent or status.state is WorkerState.SILENT
    return attrs.evolve(status, state=WorkerState.SILENT) if self.silent else status


@mutant("scheduler/local", killers=("scheduler.cancel.ends",))
class CancelReturnsAtOnce(LocalScheduler):
    """Asks workers to end and does not wait for it."""

    async def cancel(self, role: str) -> None:
        if role in self.gangs:
            self._ending = asyncio.create_task(super().cancel(role))
        await asyncio.sleep(0)

    async def close(self) -> None:
        await super().close()
        if self._ending is not None:
            await self._ending

    _ending: asyncio.Task[None] | None = None


@mutant("scheduler/local", killers=("scheduler.cancel.while_ending",))
class EndsWithoutTheRole(LocalScheduler):
    """Does not know a role any more from the moment on that it begins to end."""

    async def cancel(self, role: str) -> None:
        if role in self._begun:
            return
        self._begun.add(role)
        try:
            await super().cancel(role)
        finally:
            self._begun.discard(role)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._begun: set[str] = set()


@breaks_second("end", "scheduler.cancel.ends")
async def ChildrenStay(self: SecondWorker) -> None:
    """Ends workers, and not what they started."""
    if self.process is not None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()


@breaks("submit", "scheduler.cancel.anew", _first={})
async def FirstJobAgain(original: Original, self: Any, job: Job) -> Any:
    """Starts a role that ran before as it was asked for the first time."""
    self._first = {job.role: job, **self._first}
    return await original(self._first[job.role])


@breaks_second("end", "scheduler.cancel.in_any_state")
async def GivesUpOnTheDeaf(self: SecondWorker) -> None:
    """Asks workers to end, and leaves those that do not."""
    if self.process is None or self.ended:
        return
    self.process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(self.process.wait(), 0.5)
        os.killpg(self.process.pid, signal.SIGKILL)


@breaks_second_on_one("cancel", "scheduler.cancel.in_any_state", "scheduler.machine.lifecycle")
async def SparesSurvivors(original: Original, self: SecondScheduler, role: str) -> None:
    """Takes a gang of which a worker died for ended, and leaves the others."""
    if any(worker.status().state is WorkerState.ENDED for worker in self.gangs.get(role, ())):
        del self.gangs[role]
        self.owned.pop(role)
        return
    await original()


SECOND_ON_ONE_ROWS = breaks_second_on_one.rows(
    row("CloseForgetsTheFirst", "Ends all roles but the first when it is closed.", "scheduler.close.twice",
        close=lambda self: asyncio.gather(*(self.cancel(role) for role in tuple(self.gangs)[1:]))),
    row("CancelEndsEverybody", "Ends every role of the run when one is cancelled.", "scheduler.cancel.ends",
        cancel=lambda original, self: asyncio.gather(*(original(name) for name in tuple(self.gangs)))),
)  # fmt: skip


ROWS = breaks.rows(
    row("ZeroIsNone", "Takes exit code 0 for a worker that has none yet.", "scheduler.death.exit_code",
        poll=lambda original, role: tuple(attrs.evolve(status, exit_code=status.exit_code or None)
            for status in original(role))),
    row("SilenceUnheard", "Takes a process that exists for a worker that is well.", "scheduler.silence.noticed",
        row="dead-peer", __init__=lambda original, config: original(attrs.evolve(config, heartbeat_timeout_s=3600.0))),
    row("UnknownRolesRaise", "Raises KeyError for a role that does not run.", "scheduler.cancel.ends",
        cancel=before(lambda self, role: KeyError(role) if role not in self.gangs else None),
        close=catches(KeyError, lambda: None)),
    row("SecondCloseRaises", "Raises when it is closed a second time.", "scheduler.close.twice",
        close=before(lambda self: RuntimeError("the scheduler is closed") if self.context.closed else None)),
    row("PipesStayOpen", "Never closes the pipe each worker said its first word through.",
        "scheduler.close.leaves_nothing", incident="slime#205", row="flat-memory",
        start_worker=then(lambda result: setattr(result.process, "__class__", _OpenPipe))),
    row("StatusOfTheStart", "Tells of every worker what was true when it started.", "scheduler.death.status",
        __init__=then(lambda self: setattr(self, "told", {})),
        submit=then(lambda self, job: self.told.update({job.role: LocalScheduler.poll(self, job.role)})),
        poll=lambda self, role: self.told.get(role, ()), cancel=before(lambda self, role: self.told.pop(role, None))),
)  # fmt: skip


class _OpenPipe(WorkerProcess):
    def let_go(self) -> None:
        """Close nothing."""


@breaks_second_on_one("submit", "scheduler.close.leaves_nothing")
async def FilesStay(original: Original, job: Job) -> Any:
    """Leaves a temporary file for every job."""
    descriptor, _ = tempfile.mkstemp(prefix=job.role)
    os.close(descriptor)
    return await original()


@breaks("cancel", "scheduler.close.worker_says_goodbye")
async def KillsAtOnce(original: Original, self: LocalScheduler, role: str) -> None:
    """Kills workers without letting their engines close."""
    for status in self.poll(role):
        if status.pid is not None and status.state is not WorkerState.ENDED:
            with contextlib.suppress(ProcessLookupError):
                os.kill(status.pid, signal.SIGKILL)
    await original()


SECOND_ROWS = breaks_second.rows(
    row("LastWordsLost", "Tells that a worker ended, without what it wrote last.", "scheduler.death.in_flight",
        "scheduler.death.exit_code", obituary=after(lambda result: type(result)(result.what, fix=result.fix))),
    row("OneLogForAll", "Writes what all workers of a job say into one file.", "scheduler.log.lines",
        __init__=then(lambda self, job: setattr(self, "log", self.log.with_name(f"{job.role}.txt")))),
    row("CancelStrandsCallers", "Ends workers and leaves the calls that wait for them waiting.",
        "scheduler.death.calls_at_cancel", row="dead-peer", end=before(lambda self: self.calls.clear())),
    row("WorkersOutlive", "Leaves its workers running when the controller is killed.", "scheduler.orphans.none",
        command=("-P", "-m", "areal_proof.mutants.scheduler_workers", "outlives")),
    row("TailOfRankZero", "Quotes the log of rank 0, whoever ended.", "scheduler.death.status",
        tail=within(lambda self: put(self, log=self.log.with_name(f"{self.job.role}.0.txt")))),
)  # fmt: skip


@breaks_second_on_one("cancel", "scheduler.machine.lifecycle")
async def RoleOfTheDeadStaysTaken(original: Original, self: SecondScheduler, role: str) -> None:
    """Ends a gang of which a worker died, and goes on to tell of it until the role is cancelled again."""
    gang = self.gangs.get(role, [])
    died = any(worker.status().state is WorkerState.ENDED for worker in gang)
    await original()
    if died:
        self.gangs[role] = gang
        self.owned[role] = ("cpu", [])
