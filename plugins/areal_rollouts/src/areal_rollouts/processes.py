"""The rollout processes of a run: started with it, replaced when lost, ended with it.

Knows: the scheduler, how many there should be, and how many may be lost.
Does not know: episodes; the executor has a runner that sends them here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attrs import evolve

from areal_core.config.plan import Plan
from areal_core.contract.errors import ArealError
from areal_core.contract.scheduler import Job, Scheduler, Worker
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.observe.events import EventSink
from areal_core.plugins.devices import REPEATABLE
from areal_core.rollout.session import Fleet
from areal_core.worker.supervise import failure
from areal_rollouts.process import Process
from areal_rollouts.routing import Routing
from areal_rollouts.runner import ProcessRunner
from areal_rollouts.spec import episode_spec

ROLE = "workflow"


class RolloutProcesses:
    """Extension `rollout_processes`: as many as `rollout.processes` asks for. One per run, in its controller."""

    def __init__(self, plan: Plan, scheduler: Scheduler, tell: EventSink) -> None:
        """Start nothing yet; `tell` takes events."""
        self._scheduler, self._tell = scheduler, tell
        config = plan.config
        self._count, self._replacements = config.rollout.processes, config.rollout.max_replacements
        self._start_s, self._silence_s = config.scheduler.start_timeout_s, config.rollout.episode_timeout_s
        self._job = Job(
            role=ROLE,
            engine_role="workflow",
            backend=config.rollout.workflow.name,
            num_workers=1,
            devices_per_worker=0,
            env=dict(REPEATABLE) if config.deterministic else {},
            imports=tuple(str(Path(file).absolute()) for file in config.imports),
        )
        self._spec = episode_spec(plan).travelling()
        self._numbers = itertools.count()
        self._jobs: set[str] = set()
        self._workers: list[Worker] = []
        self._processes: dict[str, Process] = {}
        self._routing = Routing()
        self._fleet: Fleet | None = None
        self._coming: set[asyncio.Task[None]] = set()
        self._error: ArealError | None = None

    async def start(self) -> None:
        """Start every process and build the workflow and its rewards in each.

        Raises:
            ConfigError, PluginError, RewardFailed: what cannot be built.
            ResourceError, WorkerDied: as `Scheduler.submit` raises them.
        """
        self._workers = await gather_or_cancel([self._place() for _ in range(self._count)])
        self._tell("rollout_processes", workers={worker.id: worker.host for worker in self._workers})

    def runner(self, fleet: Fleet) -> Callable[..., ProcessRunner]:
        """Return what makes the runner of an executor; requests of its episodes go to `fleet`."""
        self._fleet = fleet
        while self._workers:
            self._join(self._workers.pop(0))
        return partial(ProcessRunner, self._routing)

    def check(self) -> None:
        """Look at every process once; one that ended or fell silent is replaced.

        Raises:
            WorkerError: none is left, and none may be replaced.
        """
        for process in list(self._processes.values()):
            for status in self._scheduler.poll(_job_of(process.worker)):
                if (error := failure(status)) is not None:
                    process.fail(error)
        if self._error is not None and not len(self._routing):
            raise self._error

    async def close(self) -> None:
        """End every process. Idempotent."""
        coming = list(self._coming)
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        processes, self._processes = list(self._processes.values()), {}
        await asyncio.gather(*(process.close() for process in processes))
        jobs, self._jobs = self._jobs, set()
        await asyncio.gather(*(self._scheduler.cancel(job) for job in jobs))

    async def _place(self) -> Worker:
        """Start one process and have it build what makes episodes."""
        number = next(self._numbers)
        job = evolve(self._job, role=f"{ROLE}.{number}" if number else ROLE)
        (worker,) = await self._scheduler.submit(job)
        self._jobs.add(job.role)
        try:
            await worker.call("start", self._spec, timeout_s=self._start_s)
        except BaseException:
            await self._cancel(job.role)
            raise
        return worker

    def _join(self, worker: Worker) -> None:
        assert self._fleet is not None
        process = Process(worker, fleet=self._fleet, silence_s=self._silence_s, tell=self._tell, lost=self._lost)
        self._processes[worker.id] = process
        process.start()
        self._routing.add(process)

    def _lost(self, process: Process, error: ArealError) -> None:
        """Go on without a process, and start another if one may be replaced."""
        self._routing.remove(process)
        self._processes.pop(process.worker.id, None)
        name, episodes = process.worker.id, process.num_making
        replaced = "it is replaced" if self._replacements else "it is not replaced"
        says = f"rollout process {name} is lost, {replaced}; its {episodes} episodes are made again: {error.what}"
        self._tell("rollout_process_lost", worker=name, episodes=episodes, error=str(error), says=says)
        task = asyncio.create_task(self._replace(process, error))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _replace(self, process: Process, error: ArealError) -> None:
        try:
            await self._cancel(_job_of(process.worker))
            if self._replacements < 1:
                self._given_up(error)
                return
            self._replacements -= 1
            worker = await self._place()
        except ArealError as failed:
            self._given_up(failed)
        else:
            self._join(worker)
            self._tell("rollout_process_joined", worker=worker.id, host=worker.host, says=f"{worker.id} makes episodes")

    async def _cancel(self, job: str) -> None:
        await self._scheduler.cancel(job)
        self._jobs.discard(job)

    def _given_up(self, error: ArealError) -> None:
        """Remember why there is one less, and end the waiting if there is none."""
        self._error = error
        if not len(self._routing) and len(self._coming) <= 1:
            self._routing.end(error)


def _job_of(worker: Worker) -> str:
    return worker.id.rpartition("/")[0]
