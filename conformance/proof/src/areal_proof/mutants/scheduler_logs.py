"""Schedulers that lose what workers wrote: all but the beginning of a long log, a buffer, or the log of another worker.

Knows: how the local scheduler, or the second one, is bent for that.
Does not know: how it is caught.
"""

from __future__ import annotations

import attrs

from areal_core.contract.scheduler import Job
from areal_local.scheduler import local_scheduler
from areal_local.scheduler.birth import log_name
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.process import WorkerProcess
from areal_proof.mutants.rows import before, breaking, put, row, then, within
from areal_proof.second.scheduler import SecondScheduler, SecondWorker


class _FirstLines(WorkerProcess):
    def tail(self) -> tuple[str, ...]:
        return tuple(self.log_path.read_text(errors="replace").splitlines()[:20])


class _OnlyText(WorkerProcess):
    def tail(self) -> tuple[str, ...]:
        return tuple(self.log_path.read_text(encoding="utf-8").splitlines()[-20:])


def _of_the_kind(job: Job, rank: int) -> str:
    return f"{job.role.partition('.')[0]}-{rank}.log"


BUFFER_ROWS = breaking("scheduler/second", SecondScheduler, part=("worker_class", SecondWorker)).rows(
    row("WordsInABuffer", "Leaves what workers print in a buffer of theirs until there is much of it.",
        "scheduler.log.unfinished",
        __init__=lambda original, job, rank, config: original(attrs.evolve(job, env={"PYTHONUNBUFFERED": "",
            **job.env}), rank, config)),
)  # fmt: skip


LOG_ROWS = breaking("scheduler/local", LocalScheduler).rows(
    row("FirstWordsForLast", "Tells the first lines of a log for the last ones.", "scheduler.log.long",
        start_worker=then(lambda result: setattr(result.process, "__class__", _FirstLines))),
    row("LogsAreText", "Reads logs as text, and breaks at bytes that are none.", "scheduler.log.bytes",
        start_worker=then(lambda result: setattr(result.process, "__class__", _OnlyText))),
    row("LogsBeginAnew", "Writes over the log of the worker that had the role before.", "scheduler.log.kept",
        start_worker=before(lambda gang, rank, folder: (folder / log_name(gang.job, rank)).unlink(missing_ok=True))),
    row("ReplicasShareALog", "Writes what replicas say into the log of the first.", "scheduler.submit.several_roles",
        start_worker=within(lambda: put(local_scheduler, log_name=_of_the_kind))),
)  # fmt: skip
