"""A second scheduler: every worker at the other end of an anonymous socket pair, one asyncio stream for everything.

There is no address to connect to, so there is nobody to authenticate. Calls, replies and signs of life share the
stream; its end is the death of the worker, and to the worker the death of the controller. Loopback aliases play hosts:
workers differ in address from the controller and from one another, as they would on a cluster.

Knows: how a gang is started, called, watched and ended.
Does not know: what a worker does with a call (`scheduler_worker`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, frozen

from areal_core.contract.errors import (
    ArealError,
    ConfigError,
    ResourceError,
    StorageError,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from areal_core.contract.scheduler import Job, Share, Together, Worker, WorkerState, WorkerStatus
from areal_core.plugins.claims import refuse_unclaimed
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
from areal_local.scheduler.devices import DevicePool, Devices
from areal_local.scheduler.environment import interpreter, worker_environment
from areal_proof.second import manifest
from areal_proof.second import scheduler_wire as wire

HOSTED = ("train", "infer")
_TAIL_LINES = 20
_LOOK_S = 0.1


@frozen(kw_only=True)
class SecondSchedulerConfig:
    """The three settings of the core, and one."""

    log_dir: str = "logs"
    start_timeout_s: float = 180.0
    heartbeat_timeout_s: float = 8.0
    stop_timeout_s: float = field(default=2.0)
    hosts: tuple[str, ...] = field(default=("127.0.0.2", "127.0.0.3", "127.0.0.4"), converter=tuple[str, ...])


class SecondScheduler:
    """Satisfies `contract.Scheduler`."""

    worker_class: type[SecondWorker]

    def __init__(self, config: SecondSchedulerConfig) -> None:
        self.config = config
        self._devices = DevicePool.of_machine(accelerators(default_registry()), os.environ)
        self.gangs: dict[str, list[SecondWorker]] = {}
        self.owned: dict[str, tuple[str, list[Devices]]] = {}

    async def submit(self, job: Job) -> Sequence[Worker]:
        """Start every worker, or end those that were started."""
        refuse_unclaimed(job, manifest.SCHEDULER)
        if job.role in self.gangs:
            raise ConfigError(f"role {job.role!r} is taken", why="it is running", fix="cancel it first")
        if job.engine_role not in HOSTED:
            raise ConfigError(f"nobody hosts {job.engine_role!r}", why=f"hosted are {', '.join(HOSTED)}")
        if job.num_workers < 1:
            raise ConfigError(f"{job.num_workers} workers make no job", fix="ask for one or more")
        hosts = self.hosts_for(job)
        devices = self._devices_for(job)
        gang: list[SecondWorker] = []
        self.gangs[job.role], self.owned[job.role] = gang, (job.device, devices)
        try:
            for rank in range(job.num_workers):
                worker = self.worker_class(job, rank, self.config)
                worker.host = hosts[rank * len(hosts) // job.num_workers]
                gang.append(worker)
                await worker.spawn(self._devices.confinement(job.device, devices[rank]))
            await asyncio.gather(*(worker.ready() for worker in gang))
        except BaseException:
            await asyncio.shield(self.cancel(job.role))
            raise
        return tuple(gang)

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        """Return what is known; nothing is asked of anybody."""
        return tuple(worker.status() for worker in self.gangs.get(role, ()))

    async def cancel(self, role: str) -> None:
        """End a gang and wait for it."""
        gang = self.gangs.get(role, [])
        await asyncio.gather(*(worker.end() for worker in gang))
        if self.gangs.get(role) is gang:
            del self.gangs[role]
            kind, devices = self.owned.pop(role)
            self._devices.give_back(kind, [self.unheld(kind, ids) for ids in devices])

    async def close(self) -> None:
        """End every gang."""
        await asyncio.gather(*(self.cancel(role) for role in tuple(self.gangs)))

    def hosts_for(self, job: Job) -> Sequence[str]:
        """Return the hosts of a job, in the order they are filled."""
        known = self.config.hosts
        unknown = sorted(set(job.hosts) - set(known))
        if unknown:
            raise ResourceError(f"there is no host {', '.join(unknown)}", why=f"hosts are {', '.join(known)}")
        hosts: Sequence[str] = [host for host in known if not job.hosts or host in job.hosts]
        beside = job.together_with
        if beside is not None:
            taken = {worker.host for worker in self._beside(job)}
            hosts = [host for host in hosts if host in taken]
        wanted = job.num_hosts or 1
        if wanted > len(hosts):
            raise ResourceError(f"{job.role!r} wants {wanted} hosts, {len(hosts)} will do", fix="ask for fewer")
        if job.num_workers % wanted:
            raise ConfigError(f"{job.num_workers} workers on {wanted} hosts", why="each host takes equally many")
        return hosts[:wanted]

    def _beside(self, job: Job) -> Sequence[SecondWorker]:
        assert job.together_with is not None
        other = job.together_with.role
        if other not in self.gangs:
            raise ConfigError(f"{job.role!r} cannot be beside {other!r}", why="it is not running", fix="start it first")
        return self.gangs[other]

    def _devices_for(self, job: Job) -> list[Devices]:
        beside = job.together_with
        if beside is None or beside.share is not Share.DEVICES or job.device == "cpu":
            return self._devices.take(job.device, job.num_workers, job.devices_per_worker)
        kind, theirs = self.owned[beside.role]
        guests = {one for role in self.gangs if self.is_beside(role, beside) for one in self._flat(role)}
        free = [one for ids in theirs for one in ids if one not in guests]
        wanted = job.num_workers * job.devices_per_worker
        if kind != job.device or wanted > len(free):
            told = f"{job.role!r} wants {wanted} {job.device} devices of {beside.role!r}"
            raise ResourceError(told, why=f"{len(free)} of its {kind} devices have no guest")
        each = job.devices_per_worker
        return [tuple(free[rank * each : (rank + 1) * each]) for rank in range(job.num_workers)]

    def is_beside(self, role: str, beside: Together) -> bool:
        gang = self.gangs[role]
        return bool(gang) and gang[0].job.together_with == beside

    def _flat(self, role: str) -> list[str]:
        return [one for ids in self.owned[role][1] for one in ids]

    def unheld(self, kind: str, ids: Devices) -> Devices:
        held = {one for role, (other, _) in self.owned.items() if other == kind for one in self._flat(role)}
        return tuple(one for one in ids if one not in held)


class SecondWorker:
    """One process and the stream to it. Satisfies `contract.Worker`."""

    command: tuple[str, ...] = ("-P", "-m", "areal_proof.second.scheduler_worker")

    def __init__(self, job: Job, rank: int, config: SecondSchedulerConfig) -> None:
        self.id = f"{job.role}/{rank}"
        self.host = "127.0.0.1"
        self.job, self._rank, self.config = job, rank, config
        self.log = Path(config.log_dir).absolute() / f"{job.role.replace('/', '_')}.{rank}.txt"
        self.calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self.process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = True
        self._silent_s = 0.0
        self.ended = False

    async def spawn(self, own_devices: Mapping[str, str]) -> None:
        """Start the process and tell it what to be."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StorageError(f"{self.log.parent} cannot be made", why=str(exc), fix="name another log_dir") from exc
        ours, theirs = socket.socketpair()
        python, env = interpreter(self.job), worker_environment(self.job, own_devices, os.environ)
        try:
            with self.log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    *(python, *self.command, str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as exc:
            ours.close()
            if exc.filename == str(self.log):
                raise StorageError(f"{self.log} cannot be written", why=str(exc), fix="name another log_dir") from exc
            raise ResourceError(f"{self.id} cannot be started", why=str(exc), fix="check the interpreter") from exc
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listener = asyncio.create_task(self._listen(reader), name=f"second-{self.id}")
        self.write(self._writer, (wire.JOB, asdict(evolve(self.job, env={}, together_with=None)), self.id, self.host))

    async def ready(self) -> None:
        """Wait for its first word."""
        limit_s = self.config.start_timeout_s
        try:
            await asyncio.wait_for(asyncio.shield(self.started), limit_s)
        except TimeoutError:
            tail = "\n".join(self.tail())
            raise WorkerTimeout(f"{self.id} did not start within {limit_s:g} s", why=tail) from None

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Send, and wait for the reply of the same number. Any: see `contract.Worker.call`."""
        if self.ended:
            raise self.obituary()
        number, reply = next(self._numbers), asyncio.get_running_loop().create_future()
        self.calls[number] = reply
        try:
            self.send((wire.CALL, number, method, args))
            async with asyncio.timeout(timeout_s) as limit:
                return await reply
        except TimeoutError as exc:
            if not limit.expired():
                raise  # the worker's own
            why = f"nothing came within {timeout_s:g} s; the call was cancelled there"
            raise WorkerTimeout(f"{self.id} did not answer {method!r}", why=why) from exc
        finally:
            if (self.calls.pop(number, None) is not None and not reply.done()) or reply.cancelled():
                self.send((wire.CANCEL, number))

    def status(self) -> WorkerStatus:
        """Tell the state."""
        state = WorkerState.RUNNING if self.started.done() else WorkerState.STARTING
        if self._silent_s >= self.config.heartbeat_timeout_s:
            state = WorkerState.SILENT
        code = None if self.process is None else self.process.returncode
        if code is not None or self.ended:
            state = WorkerState.ENDED
        return WorkerStatus(
            id=self.id,
            role=self.job.role,
            rank=self._rank,
            state=state,
            pid=None if self.process is None else self.process.pid,
            exit_code=code,
            log_path=str(self.log),
            log_tail=self.tail() if state in (WorkerState.ENDED, WorkerState.SILENT) else (),
        )

    async def end(self) -> None:
        """Ask, wait, kill the group, wait."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), self.config.stop_timeout_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        if self._listener is not None:
            await asyncio.wait((self._listener,))
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                self.take(await self.read(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            assert self.process is not None
            await self.process.wait()
        finally:
            watch.cancel()
            self.ended = True
            for reply in (self.started, *self.calls.values()):
                if not reply.done():
                    reply.set_exception(self.obituary())
            self.started.cancelled() or self.started.exception()

    def take(self, message: Any) -> None:  # Any: what the codec gives
        self._heard, self._silent_s = True, 0.0
        match message:
            case (wire.BEAT,):
                pass
            case (wire.READY,):
                if not self.started.done():
                    self.started.set_result(None)
            case (kind, number, value):
                reply = self.calls.pop(number, None)
                if reply is None or reply.done():
                    return
                if kind == wire.OK:
                    reply.set_result(value)
                else:
                    reply.set_exception(value)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._silent_s = 0.0 if self._heard else self._silent_s + _LOOK_S
            self._heard = False
            for reply in self.calls.values() if self._silent_s >= self.config.heartbeat_timeout_s else ():
                if not reply.done():
                    reply.set_exception(WorkerTimeout(f"{self.id} is silent", why="\n".join(self.tail())))

    def send(self, message: tuple[Any, ...]) -> None:  # Any: what the codec takes
        if self._writer is not None and not self.ended:
            self.write(self._writer, message)

    async def read(self, reader: asyncio.StreamReader) -> Any:  # Any: what the codec gives
        return await wire.receive(reader)

    def write(self, writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
        wire.send(writer, message)

    def obituary(self) -> ArealError:
        code = None if self.process is None else self.process.returncode
        if self.process is not None and code is None:
            return WorkerError(f"{self.id} hung up", why="its stream ended before its process")
        told = "\n".join(self.tail()) or "its log is empty"
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return WorkerDied(f"worker {self.id} (rank {self._rank}) {how}", why=told, fix=f"read {self.log}")

    def tail(self) -> tuple[str, ...]:
        try:
            with self.log.open(encoding="utf-8", errors="replace") as lines:
                return tuple(line.rstrip("\n") for line in collections.deque(lines, maxlen=_TAIL_LINES))
        except OSError:
            return ()


SecondScheduler.worker_class = SecondWorker
