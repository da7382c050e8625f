"""Broken schedulers that put workers in the wrong place: ranks, variables, threads, devices, gangs.

Knows: how the scheduler of the core, or the second one, is bent.
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
from areal_core.contract.scheduler import Job, Worker, WorkerStatus
from areal_core.worker.devices import DevicePool, Devices
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_proof.mutants import mutant
from areal_proof.second.scheduler import SecondScheduler, SecondWorker


@mutant("scheduler/local", killers=("scheduler.submit.ranks",))
class RanksReversed(LocalScheduler):
    """Hands out workers in the order they happened to be kept, not in rank order."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return tuple(reversed(await super().submit(job)))


@mutant("scheduler/second", killers=("scheduler.submit.ranks",))
class RankOneTwice(SecondScheduler):
    """Gives the last handle twice."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = list(await super().submit(job))
        return (*workers[:-1], workers[-2]) if len(workers) > 1 else tuple(workers)


@mutant("scheduler/local", killers=("scheduler.submit.several_roles",))
class PollTellsEverybody(LocalScheduler):
    """Tells of every worker of the run, whichever role is asked for."""

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        return tuple(status for name in self._gangs for status in super(PollTellsEverybody, self).poll(name))


@mutant("scheduler/local", killers=("scheduler.env.reaches",))
class VariablesStay(LocalScheduler):
    """Lets the variables of one job reach the jobs after it."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        self._environ.update(job.env)
        return await super().submit(job)


@mutant("scheduler/second", killers=("scheduler.env.reaches",))
class VariablesOfRankZero(SecondScheduler):
    """Gives the job's variables to rank 0 only."""

    class worker_class(SecondWorker):
        def __init__(self, job: Job, rank: int, config: Any) -> None:
            super().__init__(attrs.evolve(job, env={}) if rank else job, rank, config)


@mutant("scheduler/second", killers=("scheduler.env.reaches",))
class EmptyVariablesDropped(SecondScheduler):
    """Drops variables whose value is empty."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return await super().submit(attrs.evolve(job, env={name: value for name, value in job.env.items() if value}))


@mutant("scheduler/local", killers=("scheduler.env.over_all",))
class OneThreadEach(LocalScheduler):
    """Gives every worker one thread, whatever the job says."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return await super().submit(attrs.evolve(job, cpus_per_worker=1))


@mutant("scheduler/local", killers=("scheduler.submit.interpreter",))
class OwnInterpreter(LocalScheduler):
    """Runs every worker under the controller's interpreter."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return await super().submit(attrs.evolve(job, python=None))


@mutant("scheduler/local", killers=("scheduler.gang.no_interpreter",))
class FallsBackSilently(LocalScheduler):
    """Runs under the controller's interpreter where the job's is not there."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        there = job.python is not None and shutil.which(job.python) is not None
        return await super().submit(job if there else attrs.evolve(job, python=None))


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
        free = len(self._free.get(kind, ()))
        if kind == "cpu" or num_workers * per_worker <= free:
            return super().take(kind, num_workers, per_worker)
        return [*super().take(kind, free, 1), *[()] * (num_workers - free)]


class _WithPool(LocalScheduler):
    pool: type[DevicePool]

    def __init__(self, config: Any) -> None:
        super().__init__(config, devices=self.pool.of_machine(os.environ))


@mutant("scheduler/local", killers=("scheduler.devices.exclusive",))
class DevicesLentTwice(_WithPool):
    """Gives a device to the next job while its owner still runs."""

    pool = _LendingPool


@mutant("scheduler/local", killers=("scheduler.devices.exclusive",))
class DevicesNeverReturn(_WithPool):
    """Keeps the devices of jobs that were cancelled."""

    pool = _KeepingPool


@mutant("scheduler/local", killers=("scheduler.devices.absent",))
class FewerDevicesWillDo(_WithPool):
    """Starts a job on the devices there are, and the rest of it without."""

    pool = _LeavingPool


@mutant("scheduler/second", killers=("scheduler.devices.none_on_cpu",))
class CpuSeesDevices(SecondScheduler):
    """Lets workers on the CPU see the accelerators of the machine."""

    class worker_class(SecondWorker):
        def __init__(self, job: Job, rank: int, config: Any) -> None:
            own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")} if job.device == "cpu" else {}
            super().__init__(attrs.evolve(job, env={**own, **job.env}), rank, config)


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
        if self._failing and len(self._gangs.get(role, ())) > 1:
            await asyncio.gather(*(worker.end() for worker in self._gangs.pop(role)[1:]))
            self._owned.pop(role)
            return
        await super().cancel(role)

    _failing = False


@mutant("scheduler/local", killers=("scheduler.gang.all_or_nothing",))
class RoleStaysTaken(LocalScheduler):
    """Remembers a role whose start failed as one that runs."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        if job.role in self._taken:
            raise ConfigError(f"role {job.role!r} is already running", fix="cancel it first")
        self._taken = self._taken | {job.role}
        workers = await super().submit(job)
        self._taken = self._taken - {job.role}
        return workers

    _taken: frozenset[str] = frozenset()


@mutant("scheduler/local", killers=("scheduler.gang.names_the_dead",), row="dead-peer", incident="NeMo-RL#3488")
class NamelessDeath(LocalScheduler):
    """Tells that a worker died, and not which, nor its last words."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        try:
            return await super().submit(job)
        except WorkerDied as error:
            raise WorkerDied("a worker ended") from error


@mutant("scheduler/local", killers=("scheduler.gang.start_deadline",))
class StartsForEver(LocalScheduler):
    """Waits for workers to answer as long as it takes."""

    def __init__(self, config: Any) -> None:
        super().__init__(attrs.evolve(config, start_timeout_s=3600.0))


@mutant("scheduler/second", killers=("scheduler.gang.cancelled",))
class CancelledSubmitLeaves(SecondScheduler):
    """Cleans up after errors, and not after a cancelled submit."""

    async def cancel(self, role: str) -> None:
        task = asyncio.current_task()
        waiting = [t for t in asyncio.all_tasks() if t is not task and t.cancelling()]
        if waiting:
            return
        await super().cancel(role)


@mutant("scheduler/local", killers=("scheduler.submit.twice",))
class SecondSubmitReplaces(LocalScheduler):
    """Ends the workers of a running role and starts new ones in their place."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        await self.cancel(job.role)
        return await super().submit(job)


@mutant("scheduler/second", killers=("scheduler.submit.twice_at_once",))
class LooksBeforeItWaits(SecondScheduler):
    """Takes a role when its workers answer: two submits at once both find it free."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        hidden = self._gangs.pop(job.role, None)
        if hidden is not None and all(worker.status().state == "running" for worker in hidden):
            self._gangs[job.role] = hidden
        return await super().submit(job)


@mutant("scheduler/local", killers=("scheduler.submit.unfit",))
class EmptyJobsStart(LocalScheduler):
    """Starts a job of no workers, and has nothing to give."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return await super().submit(job) if job.num_workers else ()


@mutant("scheduler/local", killers=("scheduler.submit.engine_fails",))
class FailedEngineEndsWorker(LocalScheduler):
    """Ends a worker whose engine failed to start."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in workers:
            call = worker.call

            async def calling(method: str, *args: Any, timeout_s: float, call: Any = call) -> Any:
                try:
                    return await call(method, *args, timeout_s=timeout_s)
                except ArealError:
                    if method == "start":
                        await self.cancel(job.role)
                    raise

            worker.call = calling  # type: ignore[method-assign]
        return workers
