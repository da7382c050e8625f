"""Workers as processes of this machine: all of a job or none, no device twice, no orphan.

Knows: gangs, devices, logs, and which worker died or fell silent.
Does not know: what workers compute, or what the run does when one is lost (`supervise`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import zmq

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.scheduler import Job, Worker, WorkerStatus
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
from areal_core.worker.rendezvous import is_here
from areal_local.scheduler.birth import log_name, start_worker
from areal_local.scheduler.capacity import Capacity, Grant, machine_memory
from areal_local.scheduler.channel import KeyPair
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.devices import DevicePool
from areal_local.scheduler.environment import interpreter, worker_environment
from areal_local.scheduler.local_worker import LocalWorker
from areal_local.scheduler.manifest import LOCAL
from areal_local.scheduler.private_folder import PrivateFolder, private_roots
from areal_local.scheduler.rpc import RpcClient
from areal_local.scheduler.stalls import StallWatch
from areal_local.scheduler.starting import all_started, check_job, made_folder

LOOK_S = 0.1
"""Between two looks at every worker: the delay with which a death is noticed."""


class LocalScheduler:
    """Satisfies `contract.Scheduler`. Made and used in one event loop.

    Every worker ends when the controller does, however it ends: see `areal_worker.watchdog`.
    """

    manifest = LOCAL
    """What `submit` refuses to go beyond."""

    def __init__(
        self,
        config: LocalConfig | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        devices: DevicePool | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            environ: what workers inherit; this process's own environment if None.
            devices: the accelerators to give out; those visible here if None.
            clock: times the watch over workers.
        """
        self.config = config or LocalConfig()
        self.environ = dict(os.environ if environ is None else environ)
        self._devices = devices or DevicePool.of_machine(accelerators(default_registry()), self.environ)
        self.capacity = Capacity(self._devices, machine_memory())
        self._clock = clock or SystemClock()
        self.keys = KeyPair.generate()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gangs: dict[str, _Gang] = {}
        self._stalls = StallWatch(self.config, self._running)
        self._watch: asyncio.Task[None] | None = None
        self._sockets: PrivateFolder | None = None

    async def submit(self, job: Job) -> Sequence[Worker]:
        """Start every worker of a job, or none; see `contract.Scheduler.submit`."""
        check_job(job, self.manifest, self.gangs)
        gang = _Gang(self.capacity.take(job))
        self.gangs[job.role] = gang
        try:
            self.spawn(gang)
            starts = [worker.become_ready(self.context, self.keys, max_gap_s=2 * LOOK_S) for worker in gang.workers]
            statuses = [worker.status() for worker in gang.workers]
            await all_started(starts, statuses, self.config.start_timeout_s)
        except BaseException:
            await asyncio.shield(self.cancel(job.role))
            raise
        for worker in gang.workers if job.engine_role == "train" else ():
            worker.client.on_late = partial(self._stalls.late, worker)
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_workers(), name="areal-worker-watch")
        return tuple(worker.client for worker in gang.workers)

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        """Return the state of each worker of a role, in rank order; nothing for a role that does not run."""
        if self._watch is not None and self._watch.done():
            self._watch.result()  # a watch that broke must not look like workers that are well
        gang = self.gangs.get(role)
        self._stalls.check(gang.job.engine_role if gang else "", gang.workers if gang else ())
        return () if gang is None else tuple(worker.status() for worker in gang.workers)

    async def cancel(self, role: str) -> None:
        """End every worker of a role and wait until they are gone. Idempotent."""
        gang = self.gangs.get(role)
        if gang is None:
            return
        await asyncio.gather(*(worker.end(self.config.stop_timeout_s) for worker in gang.workers))
        if self.gangs.get(role) is gang:
            del self.gangs[role]
            self.capacity.give_back(role)

    async def close(self) -> None:
        """Cancel everything; leave no process, port or file behind. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait((watch,))
        try:
            await asyncio.gather(*(self.cancel(role) for role in tuple(self.gangs)))
        finally:
            self.context.destroy(linger=0)
            if self._sockets is not None:
                self._sockets.close()

    def address(self, job: Job, rank: int) -> str:
        """Return the address a worker listens on and is reached at. Override it where workers have others."""
        return self.config.host

    def folder(self, job: Job, rank: int) -> str | None:
        """Return the folder of Unix sockets a worker is called through; None for TCP, as with one of another machine.

        Nobody but this user can enter it. Override it where workers have this machine's address, but not its files.
        """
        if self.config.listen_on_all or not is_here(self.address(job, rank)):
            return None
        if self._sockets is None:
            self._sockets = PrivateFolder(private_roots(self.environ))
        return str(self._sockets.path)

    def command(self, job: Job, rank: int) -> tuple[str, ...]:
        """Return the command that runs a worker's interpreter. Override it to enter a namespace or a container."""
        return (interpreter(job),)

    def spawn(self, gang: _Gang) -> None:
        folder = made_folder(self.config.log_dir)
        for rank in range(gang.job.num_workers):
            gang.workers.append(self.start_worker(gang, rank, folder))

    def start_worker(self, gang: _Gang, rank: int, folder: Path) -> LocalWorker[RpcClient]:
        job, host = gang.job, self.address(gang.job, rank)
        own = self._devices.confinement(job.device, gang.devices[rank])
        return start_worker(
            job,
            rank,
            RpcClient,
            host=host,
            listen=self.folder(job, rank) or ("*" if self.config.listen_on_all else host),
            controller_key=self.keys.public,
            command=self.command(job, rank),
            environ=worker_environment(job, own, self.environ),
            log_path=folder / log_name(job, rank),
        )

    async def _watch_workers(self) -> None:
        while True:
            for gang in tuple(self.gangs.values()):
                for worker in gang.workers:
                    worker.look(self._clock.now(), self.config.heartbeat_timeout_s)
            self._stalls.look(self._clock.now())
            await self._clock.sleep(LOOK_S)

    def _running(self) -> list[LocalWorker[RpcClient]]:
        return [worker for gang in self.gangs.values() for worker in gang.workers if worker.running]


class _Gang:
    """The workers of one job and the devices they own."""

    def __init__(self, grant: Grant) -> None:
        self.job, self.devices = grant.job, grant.devices
        self.workers: list[LocalWorker[RpcClient]] = []
