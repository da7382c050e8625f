"""Broken schedulers that take one name for another, or lose the last of what they were told.

Knows: how the scheduler of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.local_worker import LocalWorker
from areal_local.scheduler.process import WorkerProcess
from areal_proof.mutants import mutant
from areal_proof.second.scheduler import SecondScheduler, SecondWorker


@mutant("scheduler/second", killers=("scheduler.cancel.namesakes",), row="tenants")
class CancelsByPattern(SecondScheduler):
    """Cancels every role in whose name the given one is found."""

    async def cancel(self, role: str) -> None:
        for other in [name for name in self._gangs if role in name]:
            await super().cancel(other)


@mutant("scheduler/local", killers=("scheduler.cancel.takes_env",), row="tenants")
class VariablesOutliveTheirJob(LocalScheduler):
    """The variables of a job are kept for all jobs after it."""

    def _start_worker(self, gang: Any, rank: int, folder: Any) -> LocalWorker:
        worker = super()._start_worker(gang, rank, folder)
        self._environ.update(gang.job.env)
        return worker


@mutant("scheduler/local", killers=("scheduler.submit.late_failure",))
class ForgetsTheFirst(LocalScheduler):
    """Of a job whose last worker cannot be started, those started before are forgotten while they run."""

    def _spawn(self, gang: Any) -> None:
        try:
            super()._spawn(gang)
        except BaseException:
            gang.workers.clear()
            raise


class _WholeLines(WorkerProcess):
    def tail(self) -> tuple[str, ...]:
        """Return the last lines that have an end."""
        text = self.log_path.read_text(errors="replace")
        return tuple(text[: text.rfind("\n") + 1].splitlines()[-20:])


@mutant("scheduler/local", killers=("scheduler.log.unfinished",), row="dead-peer")
class WholeLinesOnly(LocalScheduler):
    """Of the last words only lines with an end are told."""

    def _start_worker(self, gang: Any, rank: int, folder: Any) -> LocalWorker:
        worker = super()._start_worker(gang, rank, folder)
        worker.process.__class__ = _WholeLines
        return worker


@mutant("scheduler/second", killers=("scheduler.log.unfinished",), row="dead-peer")
class TailOfTheStart(SecondScheduler):
    """The last words of a silent worker are those it had when it started."""

    class worker_class(SecondWorker):
        words: tuple[str, ...] | None = None

        async def ready(self) -> None:
            await super().ready()
            self.words = super()._tail()

        def _tail(self) -> tuple[str, ...]:
            return super()._tail() if self.words is None or self._ended else self.words
