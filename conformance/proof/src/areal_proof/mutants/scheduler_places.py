"""Broken schedulers that put workers in the wrong place, or take one name for another.

Knows: how the local scheduler, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from typing import Any

import attrs

from areal_core.contract.errors import ArealError, ConfigError, WorkerDied
from areal_core.contract.scheduler import Job, Worker
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
from areal_local.scheduler.devices import DevicePool, Devices
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.process import WorkerProcess
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, given, on, row, then
from areal_proof.second.scheduler import SecondScheduler, SecondWorker

breaks = breaking("scheduler/local", LocalScheduler)
breaks_second = breaking("scheduler/second", SecondScheduler)


class _LendingPool(DevicePool):
    def take(self, kind: str, num_workers: int, per_worker: int) -> list[Devices]:
        taken = super().take(kind, num_workers, per_worker)
        super().give_back(kind, taken)
        return taken

    def give_back(self, kind: str, devices: Sequence[Devices]) -> None:
        """Have done so already."""


class _KeepingPool(DevicePool):
    def give_back(self, kind: str, devices: Sequence[Devices]) -> None:
        """Keep them."""


class _LeavingPool(DevicePool):
    def take(self, kind: str, num_workers: int, per_worker: int) -> list[Devices]:
        free = len(self.free.get(kind, ()))
        if kind == "cpu" or num_workers * per_worker <= free:
            return super().take(kind, num_workers, per_worker)
        return [*super().take(kind, free, 1), *[()] * (num_workers - free)]


class _OpenPool(DevicePool):
    def confinement(self, kind: str, devices: Devices) -> dict[str, str]:
        whole = [device.confine(devices) for device in self._kinds if device.name == kind]
        return whole[0] if whole else super().confinement(kind, devices)


class _WithPool(LocalScheduler):
    pool: type[DevicePool]

    def __init__(self, config: Any) -> None:
        super().__init__(config, devices=self.pool.of_machine(accelerators(default_registry()), os.environ))


SECOND_ROWS = breaks_second.rows(
    row("VariablesOfRankZero", "Gives the job's variables to rank 0 only.", "scheduler.env.reaches",
        part=("worker_class", SecondWorker),
        __init__=lambda original, job, rank, config: original(attrs.evolve(job, env={}) if rank else job, rank,
            config)),
    row("EmptyVariablesDropped", "Drops variables whose value is empty.", "scheduler.env.reaches",
        submit=given(env=lambda job: {name: value for name, value in job.env.items() if value})),
    row("CpuSeesDevices", "Lets workers on the CPU see the accelerators of the machine.",
        "scheduler.devices.none_on_cpu", part=("worker_class", SecondWorker),
        __init__=lambda original, job, rank, config: original(attrs.evolve(job,
            env={**({"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")} if job.device == "cpu"
            else {}), **job.env}), rank, config)),
    row("RankOneTwice", "Gives the last handle twice.", "scheduler.submit.ranks",
        submit=after(lambda result: (*result[:-1], result[-2]) if len(result) > 1 else tuple(result))),
)  # fmt: skip


@mutant("scheduler/second", killers=("scheduler.gang.all_or_nothing",), row="dead-peer", incident="TRL#6913")
class OthersStay(SecondScheduler):
    """Leaves the workers that did start when one of the gang does not."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        self._failing = True
        try:
            return await super().submit(job)
        finally:
            self._failing = False

    async def cancel(self, role: str) -> None:
        if self._failing and len(self.gangs.get(role, ())) > 1:
            # Held on to: a handle that is collected closes its stream, and with that its worker ends after all.
            self._left = self.gangs.pop(role)
            await asyncio.gather(*(worker.end() for worker in self._left[1:]))
            self.owned.pop(role)
            return
        await super().cancel(role)

    _failing = False
    _left: Sequence[SecondWorker] = ()


@breaks("submit", "scheduler.gang.all_or_nothing", _taken=frozenset())
async def RoleStaysTaken(original: Original, self: Any, job: Job) -> Any:
    """Remembers a role whose start failed as one that runs."""
    if job.role in self._taken:
        raise ConfigError(f"role {job.role!r} is already running", fix="cancel it first")
    self._taken = self._taken | {job.role}
    workers = await original()
    self._taken = self._taken - {job.role}
    return workers


@breaks_second("cancel", "scheduler.gang.cancelled")
async def CancelledSubmitLeaves(original: Original) -> None:
    """Cleans up after errors, and not after a cancelled submit."""
    task = asyncio.current_task()
    waiting = [t for t in asyncio.all_tasks() if t is not task and t.cancelling()]
    if waiting:
        return
    await original()


@breaks("close", "scheduler.gang.ended")
async def ClosesWhatRuns(original: Original, self: LocalScheduler) -> None:
    """Ends the workers that run when it is closed, and leaves those that are still starting."""
    for role, gang in tuple(self.gangs.items()):
        if not all(worker.running for worker in gang.workers):
            del self.gangs[role]
    await original()


@breaks("submit", "scheduler.submit.twice")
async def SecondSubmitReplaces(original: Original, self: LocalScheduler, job: Job) -> Any:
    """Ends the workers of a running role and starts new ones in their place."""
    await self.cancel(job.role)
    return await original()


@breaks_second("submit", "scheduler.submit.twice_at_once")
async def LooksBeforeItWaits(original: Original, self: SecondScheduler, job: Job) -> Any:
    """Takes a role when its workers answer: two submits at once both find it free."""
    hidden = self.gangs.pop(job.role, None)
    if hidden is not None and all(worker.status().state == "running" for worker in hidden):
        self.gangs[job.role] = hidden
    return await original()


ROWS = breaks.rows(
    row("RanksReversed", "Hands out workers in the order they happened to be kept, not in rank order.",
        "scheduler.submit.ranks", submit=after(lambda result: tuple(reversed(result)))),
    row("VariablesStay", "Lets the variables of one job reach the jobs after it.", "scheduler.env.reaches",
        submit=before(lambda self, job: self.environ.update(job.env))),
    row("OneThreadEach", "Gives every worker one thread, whatever the job says.", "scheduler.env.over_all",
        submit=given(cpus_per_worker=1)),
    row("OwnInterpreter", "Runs every worker under the controller's interpreter.", "scheduler.submit.interpreter",
        submit=given(python=None)),
    row("FallsBackSilently", "Runs under the controller's interpreter where the job's is not there.",
        "scheduler.gang.no_interpreter",
        submit=lambda original, job: original(job if job.python is not None and shutil.which(job.python) is not None
            else attrs.evolve(job, python=None))),
    row("DevicesLentTwice", "Gives a device to the next job while its owner still runs.",
        "scheduler.devices.exclusive", base=_WithPool, pool=_LendingPool),
    row("DevicesNeverReturn", "Keeps the devices of jobs that were cancelled.", "scheduler.devices.exclusive",
        base=_WithPool, pool=_KeepingPool),
    row("OtherKindsSeen", "Confines workers to some devices of their kind, and lets them see those of all others.",
        "scheduler.devices.of_its_kind", base=_WithPool, pool=_OpenPool),
    row("FewerDevicesWillDo", "Starts a job on the devices there are, and the rest of it without.",
        "scheduler.devices.absent", base=_WithPool, pool=_LeavingPool),
    row("NamelessDeath", "Tells that a worker died, and not which, nor its last words.",
        "scheduler.gang.names_the_dead", incident="NeMo-RL#3488", row="dead-peer",
        submit=catches(WorkerDied, lambda: WorkerDied("a worker ended"))),
    row("StartsForEver", "Waits for workers to answer as long as it takes.", "scheduler.gang.start_deadline",
        __init__=lambda original, config: original(attrs.evolve(config, start_timeout_s=3600.0))),
    row("EmptyJobsStart", "Starts a job of no workers, and has nothing to give.", "scheduler.submit.unfit",
        submit=lambda original, job: original(job) if job.num_workers else ()),
    row("ForgetsTheFirst",
        "Of a job whose last worker cannot be started, those started before are forgotten while they run.",
        "scheduler.submit.late_failure", spawn=on(BaseException, lambda gang: gang.workers.clear())),
    row("PollTellsEverybody", "Tells of every worker of the run, whichever role is asked for.",
        "scheduler.submit.several_roles",
        poll=lambda original, self: tuple(status for name in self.gangs for status in original(name))),
)  # fmt: skip


@breaks("submit", "scheduler.submit.engine_fails")
async def FailedEngineEndsWorker(original: Original, self: LocalScheduler, job: Job) -> Any:
    """Ends a worker whose engine failed to start."""
    workers = await original()
    for worker in workers:
        call = worker.call

        async def calling(method: str, *args: Any, timeout_s: float, call: Any = call) -> Any:
            try:
                return await call(method, *args, timeout_s=timeout_s)
            except ArealError:
                if method == "start":
                    await self.cancel(job.role)
                raise

        worker.call = calling
    return workers


@breaks_second("cancel", "scheduler.cancel.namesakes", row="tenants")
async def CancelsByPattern(original: Original, self: SecondScheduler, role: str) -> None:
    """Cancels every role in whose name the given one is found."""
    for other in [name for name in self.gangs if role in name]:
        await original(other)


class _WholeLines(WorkerProcess):
    def tail(self) -> tuple[str, ...]:
        """Return the last lines that have an end."""
        text = self.log_path.read_text(errors="replace")
        return tuple(text[: text.rfind("\n") + 1].splitlines()[-20:])


NAMES_ROWS = breaks.rows(
    row("VariablesOutliveTheirJob", "The variables of a job are kept for all jobs after it.",
        "scheduler.cancel.takes_env", row="tenants",
        start_worker=then(lambda self, gang: self.environ.update(gang.job.env))),
    row("WholeLinesOnly", "Of the last words only lines with an end are told.", "scheduler.log.unfinished",
        row="dead-peer", start_worker=then(lambda result: setattr(result.process, "__class__", _WholeLines))),
)  # fmt: skip


@mutant("scheduler/second", killers=("scheduler.log.unfinished",), row="dead-peer")
class TailOfTheStart(SecondScheduler):
    """The last words of a silent worker are those it had when it started."""

    class worker_class(SecondWorker):
        words: tuple[str, ...] | None = None

        async def ready(self) -> None:
            await super().ready()
            self.words = super().tail()

        def tail(self) -> tuple[str, ...]:
            return super().tail() if self.words is None or self.ended else self.words
