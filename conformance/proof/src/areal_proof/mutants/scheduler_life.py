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
from pathlib import Path
from typing import Any

import attrs

from areal_core.contract.errors import ArealError, WorkerDied
from areal_core.contract.scheduler import Job, Worker, WorkerState, WorkerStatus
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.local_worker import LocalWorker
from areal_local.scheduler.process import WorkerProcess
from areal_proof.mutants import mutant
from areal_proof.second.scheduler import SecondScheduler, SecondSchedulerConfig, SecondWorker


@mutant("scheduler/local", killers=("scheduler.death.in_flight",), row="dead-peer", incident="verl#7155")
class DeathUnseen(LocalScheduler):
    """Never looks at its workers: a call of a dead one waits for its own deadline."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in self._gangs[job.role].workers:
            worker.look = lambda now, silent_after_s: None  # type: ignore[method-assign]
        return workers

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        gang = self._gangs.get(role)
        states = [] if gang is None else gang.workers
        return tuple(
            WorkerStatus(id=w.id, role=role, rank=rank, state=WorkerState.RUNNING, pid=w.process.pid)
            for rank, w in enumerate(states)
        )


@mutant("scheduler/second", killers=("scheduler.death.in_flight",), row="dead-peer", incident="tinker-cookbook#945")
class NeighboursDieToo(SecondScheduler):
    """Ends the calls of the whole gang when one worker dies."""

    class worker_class(SecondWorker):
        def _obituary(self) -> ArealError:
            for neighbour in self.gang:
                for reply in neighbour._calls.values():
                    if not reply.done():
                        reply.set_exception(WorkerDied("a neighbour ended"))
            return super()._obituary()

        gang: tuple[SecondWorker, ...] = ()

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in workers:
            worker.gang = workers  # type: ignore[attr-defined]
        return workers


@mutant("scheduler/second", killers=("scheduler.death.in_flight", "scheduler.death.exit_code"))
class LastWordsLost(SecondScheduler):
    """Tells that a worker ended, without what it wrote last."""

    class worker_class(SecondWorker):
        def _obituary(self) -> ArealError:
            error = super()._obituary()
            return type(error)(error.what, fix=error.fix)


@mutant("scheduler/local", killers=("scheduler.death.status",))
class StatusOfTheStart(LocalScheduler):
    """Tells of every worker what was true when it started."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        self._told = {**self._told, job.role: super().poll(job.role)}
        return workers

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        return self._told.get(role, ())

    async def cancel(self, role: str) -> None:
        self._told = {name: told for name, told in self._told.items() if name != role}
        await super().cancel(role)

    _told: dict[str, Sequence[WorkerStatus]] = {}  # noqa: RUF012


@mutant("scheduler/second", killers=("scheduler.death.status",))
class TailOfRankZero(SecondScheduler):
    """Quotes the log of rank 0, whoever ended."""

    class worker_class(SecondWorker):
        def _tail(self) -> tuple[str, ...]:
            own, self._log = self._log, self._log.with_name(f"{self.job.role}.0.txt")
            try:
                return super()._tail()
            finally:
                self._log = own


@mutant("scheduler/local", killers=("scheduler.death.exit_code",))
class ZeroIsNone(LocalScheduler):
    """Takes exit code 0 for a worker that has none yet."""

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        return tuple(attrs.evolve(status, exit_code=status.exit_code or None) for status in super().poll(role))


@mutant("scheduler/second", killers=("scheduler.log.lines",))
class OneLogForAll(SecondScheduler):
    """Writes what all workers of a job say into one file."""

    class worker_class(SecondWorker):
        def __init__(self, job: Job, rank: int, config: SecondSchedulerConfig) -> None:
            super().__init__(job, rank, config)
            self._log = self._log.with_name(f"{job.role}.txt")


@mutant("scheduler/local", killers=("scheduler.log.lines",))
class LogsGoWithClose(LocalScheduler):
    """Removes the logs when it is closed."""

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(shutil.rmtree, self._config.log_dir, ignore_errors=True)


@mutant("scheduler/local", killers=("scheduler.silence.noticed",), row="dead-peer")
class SilenceUnheard(LocalScheduler):
    """Takes a process that exists for a worker that is well."""

    def __init__(self, config: Any) -> None:
        super().__init__(attrs.evolve(config, heartbeat_timeout_s=3600.0))


@mutant("scheduler/second", killers=("scheduler.silence.noticed",))
class SilenceForEver(SecondScheduler):
    """Never takes a worker back that was silent once."""

    class worker_class(SecondWorker):
        def status(self) -> WorkerStatus:
            status = super().status()
            self.silent = self.silent or status.state is WorkerState.SILENT
            return attrs.evolve(status, state=WorkerState.SILENT) if self.silent else status

        silent = False


@mutant("scheduler/second", killers=("scheduler.death.calls_at_cancel",), row="dead-peer")
class CancelStrandsCallers(SecondScheduler):
    """Ends workers and leaves the calls that wait for them waiting."""

    class worker_class(SecondWorker):
        async def end(self) -> None:
            self._calls.clear()
            await super().end()


@mutant("scheduler/local", killers=("scheduler.cancel.ends",))
class CancelReturnsAtOnce(LocalScheduler):
    """Asks workers to end and does not wait for it."""

    async def cancel(self, role: str) -> None:
        if role in self._gangs:
            self._ending = asyncio.create_task(super().cancel(role))
        await asyncio.sleep(0)

    async def close(self) -> None:
        await super().close()
        if self._ending is not None:
            await self._ending

    _ending: asyncio.Task[None] | None = None


@mutant("scheduler/second", killers=("scheduler.cancel.ends",))
class ChildrenStay(SecondScheduler):
    """Ends workers, and not what they started."""

    class worker_class(SecondWorker):
        async def end(self) -> None:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                await self._process.wait()


@mutant("scheduler/second", killers=("scheduler.cancel.ends",))
class CancelEndsEverybody(SecondScheduler):
    """Ends every role of the run when one is cancelled."""

    async def cancel(self, role: str) -> None:
        await asyncio.gather(*(super(CancelEndsEverybody, self).cancel(name) for name in tuple(self._gangs)))


@mutant("scheduler/local", killers=("scheduler.cancel.ends",))
class UnknownRolesRaise(LocalScheduler):
    """Raises KeyError for a role that does not run."""

    async def cancel(self, role: str) -> None:
        if role not in self._gangs:
            raise KeyError(role)
        await super().cancel(role)

    async def close(self) -> None:
        with contextlib.suppress(KeyError):
            await super().close()


@mutant("scheduler/local", killers=("scheduler.cancel.anew",))
class FirstJobAgain(LocalScheduler):
    """Starts a role that ran before as it was asked for the first time."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        self._first = {job.role: job, **self._first}
        return await super().submit(self._first[job.role])

    _first: dict[str, Job] = {}  # noqa: RUF012


@mutant("scheduler/second", killers=("scheduler.cancel.in_any_state",))
class GivesUpOnTheDeaf(SecondScheduler):
    """Asks workers to end, and leaves those that do not."""

    class worker_class(SecondWorker):
        async def end(self) -> None:
            if self._process is None or self._ended:
                return
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 0.5)
                os.killpg(self._process.pid, signal.SIGKILL)


@mutant("scheduler/second", killers=("scheduler.cancel.in_any_state", "scheduler.machine.lifecycle"))
class SparesSurvivors(SecondScheduler):
    """Takes a gang of which a worker died for ended, and leaves the others."""

    async def cancel(self, role: str) -> None:
        if any(worker.status().state is WorkerState.ENDED for worker in self._gangs.get(role, ())):
            del self._gangs[role]
            self._owned.pop(role)
            return
        await super().cancel(role)


@mutant("scheduler/local", killers=("scheduler.close.twice",))
class SecondCloseRaises(LocalScheduler):
    """Raises when it is closed a second time."""

    async def close(self) -> None:
        if self._context.closed:
            raise RuntimeError("the scheduler is closed")
        await super().close()


@mutant("scheduler/second", killers=("scheduler.close.twice",))
class CloseForgetsTheFirst(SecondScheduler):
    """Ends all roles but the first when it is closed."""

    async def close(self) -> None:
        await asyncio.gather(*(self.cancel(role) for role in tuple(self._gangs)[1:]))


@mutant("scheduler/local", killers=("scheduler.close.leaves_nothing",), row="flat-memory", incident="slime#205")
class PipesStayOpen(LocalScheduler):
    """Never closes the pipe each worker said its first word through."""

    def _start_worker(self, gang: Any, rank: int, folder: Path) -> LocalWorker:
        worker = super()._start_worker(gang, rank, folder)
        worker.process.__class__ = _OpenPipe
        return worker


class _OpenPipe(WorkerProcess):
    def _let_go(self) -> None:
        """Close nothing."""


@mutant("scheduler/second", killers=("scheduler.close.leaves_nothing",))
class FilesStay(SecondScheduler):
    """Leaves a temporary file for every job."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        descriptor, _ = tempfile.mkstemp(prefix=job.role)
        os.close(descriptor)
        return await super().submit(job)


@mutant("scheduler/local", killers=("scheduler.close.worker_says_goodbye",))
class KillsAtOnce(LocalScheduler):
    """Kills workers without letting their engines close."""

    async def cancel(self, role: str) -> None:
        for status in self.poll(role):
            if status.pid is not None and status.state is not WorkerState.ENDED:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)
        await super().cancel(role)


@mutant("scheduler/second", killers=("scheduler.orphans.none",))
class WorkersOutlive(SecondScheduler):
    """Leaves its workers running when the controller is killed."""

    class worker_class(SecondWorker):
        command = ("-P", "-m", "areal_proof.mutants.scheduler_workers", "outlives")


@mutant("scheduler/second", killers=("scheduler.machine.lifecycle",))
class RoleOfTheDeadStaysTaken(SecondScheduler):
    """Ends a gang of which a worker died, and goes on to tell of it until the role is cancelled again."""

    async def cancel(self, role: str) -> None:
        gang = self._gangs.get(role, [])
        died = any(worker.status().state is WorkerState.ENDED for worker in gang)
        await super().cancel(role)
        if died:
            self._gangs[role] = gang
            self._owned[role] = ("cpu", [])
