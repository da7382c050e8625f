"""Placement and life cycle of worker processes; nothing about what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from attrs import Factory, field, frozen


class Share(StrEnum):
    """What workers have in common with those of another role."""

    HOST = "host"
    """Every worker runs on a host where a worker of that role runs."""
    DEVICES = "devices"
    """Every worker owns devices that workers of that role own too, and so shares their host."""


@frozen(kw_only=True)
class Together:
    """Ask for a place beside a role that was submitted before.

    Shared devices are taken in rank order, those first that no other job shares yet; none has more than one guest.
    They are free again when the role and its guest have both ended.

    Example: Together(role="actor", share="devices")
    """

    role: str
    """The role that is there already."""
    share: Share = field(default=Share.HOST, converter=Share)
    """Its hosts only, or its devices."""


@frozen(kw_only=True)
class Job:
    """Ask for `num_workers` equal workers of one role, all or none (gang).

    `engine_role` and `backend` name the plugin each worker hosts; the worker resolves the
    name itself. `python` is another interpreter to run under, for engines that pin
    their own torch. `imports` are the user's own files, by local path.

    Example: Job(role="actor", engine_role="train", backend="fsdp", num_workers=2, devices_per_worker=1, device="cpu")
    """

    role: str
    engine_role: str
    backend: str
    num_workers: int
    device: str = "cpu"
    devices_per_worker: int = 1
    """Accelerators each worker owns; on the CPU it owns none and this is not counted."""
    cpus_per_worker: int = 1
    """Compute threads each worker may use."""
    env: Mapping[str, str] = Factory(dict)
    """Variables of every worker, over whatever else the scheduler sets."""
    python: str | None = None
    imports: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    num_hosts: int = 0
    """Spread over exactly so many hosts, equally many consecutive ranks on each; 0 leaves it to the scheduler."""
    hosts: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Only on these hosts, by the scheduler's names for them: nodes of Slurm or Ray. `Worker.host` is one too."""
    memory: int = 0
    """Bytes of host memory kept for each worker; what other jobs were promised is not promised again. 0 asks for none.
    A job whose memory no machine has is refused with ResourceError."""
    image: str | None = None
    """Container image the workers run in; it holds the interpreter and the packages."""
    together_with: Together | None = None
    """Beside which role."""


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    SILENT = "silent"
    """Alive as a process, but no heartbeat within the deadline."""
    ENDED = "ended"


@frozen(kw_only=True)
class WorkerStatus:
    """What the scheduler knows of one worker. `log_tail` is filled once it ended or fell silent."""

    id: str
    role: str
    rank: int
    state: WorkerState = field(converter=WorkerState)
    pid: int | None = None
    exit_code: int | None = None
    log_path: str = ""
    log_tail: tuple[str, ...] = field(default=(), converter=tuple[str, ...])


@runtime_checkable
class Worker(Protocol):
    """A handle on one worker process, held by the controller."""

    id: str
    """`<role>/<rank>`, for example `actor/0`."""
    host: str
    """Address other workers of the run and the controller can reach it at. Its RPC and its rendezvous are there.
    Workers of the same host have the same one."""

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a method of the hosted engine and return its result.

        Any: arguments and results are whatever the contract's method takes: contract types,
        plain data, tensors. Concurrent calls are allowed; the host orders them as its engine needs.

        Raises:
            WorkerDied: the process ended; names worker, rank and last log lines.
            WorkerTimeout: no answer within `timeout_s` seconds.
            ArealError: one raised in the worker arrives as itself.
            RemoteError: any other exception, with the remote traceback.
        """


@runtime_checkable
class Scheduler(Protocol):
    """Where workers run. One per run, in the controller. Named by the entry point group `areal.scheduler`."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        """Start every worker of a job, or none. Returns when all answer, in rank order.

        Raises:
            ResourceError: the machines cannot hold the job; nothing was started.
            CapabilityError: the job asks for something the scheduler does not claim; nothing was started.
            WorkerDied: a worker ended while starting; the others were ended too.
            ConfigError: the role is already running, or the one to be together with is not.
        """

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        """Return the state of each worker of a role, in rank order. Cheap; called often."""

    async def cancel(self, role: str) -> None:
        """End every worker of a role and wait until they are gone. Idempotent."""

    async def close(self) -> None:
        """Cancel everything; leave no process, port or file behind. Idempotent."""
