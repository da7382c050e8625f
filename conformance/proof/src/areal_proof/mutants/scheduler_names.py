"""Broken schedulers that take one name for another, or lose the last of what they were told.

Knows: how the scheduler of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.process import WorkerProcess
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, row, then
from areal_proof.second.scheduler import SecondScheduler, SecondWorker

breaks = breaking("scheduler/local", LocalScheduler)
breaks_second = breaking("scheduler/second", SecondScheduler)


@breaks_second("cancel", "scheduler.cancel.namesakes", row="tenants")
async def CancelsByPattern(original: Original, self: SecondScheduler, role: str) -> None:
    """Cancels every role in whose name the given one is found."""
    for other in [name for name in self._gangs if role in name]:
        await original(other)


@breaks("_spawn", "scheduler.submit.late_failure")
def ForgetsTheFirst(original: Original, gang: Any) -> None:
    """Of a job whose last worker cannot be started, those started before are forgotten while they run."""
    try:
        original()
    except BaseException:
        gang.workers.clear()
        raise


class _WholeLines(WorkerProcess):
    def tail(self) -> tuple[str, ...]:
        """Return the last lines that have an end."""
        text = self.log_path.read_text(errors="replace")
        return tuple(text[: text.rfind("\n") + 1].splitlines()[-20:])


ROWS = breaks.rows(
    row("VariablesOutliveTheirJob", "The variables of a job are kept for all jobs after it.",
        "scheduler.cancel.takes_env", row="tenants",
        _start_worker=then(lambda self, gang: self._environ.update(gang.job.env))),
    row("WholeLinesOnly", "Of the last words only lines with an end are told.", "scheduler.log.unfinished",
        row="dead-peer", _start_worker=then(lambda result: setattr(result.process, "__class__", _WholeLines))),
)  # fmt: skip


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
