"""Host memory and devices of this machine, promised to jobs: nothing twice, except devices that a guest shares.

Knows: what each job was given, and what is left.
Does not know: processes; nobody is stopped at what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil
from attrs import frozen

from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job, Share
from areal_local.scheduler.devices import DevicePool, Devices

_CGROUP_LIMIT = Path("sys/fs/cgroup/memory.max")


def machine_memory(root: Path = Path("/")) -> int:
    """Return the bytes of host memory processes of this machine, or of this container, may use in all."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int((root / _CGROUP_LIMIT).read_text()))
    except (OSError, ValueError):
        return total  # no such limit, or "max"


@frozen
class Grant:
    """What one job holds: ids of devices per worker."""

    job: Job
    devices: list[Devices]

    @property
    def memory(self) -> int:
        """Return the bytes promised to all of its workers."""
        return self.job.memory * self.job.num_workers


class Capacity:
    """What this machine has to give. One per scheduler."""

    def __init__(self, devices: DevicePool, memory: int) -> None:
        self._pool, self.memory = devices, memory
        self._grants: dict[str, Grant] = {}

    def take(self, job: Job) -> Grant:
        """Give a job what it asks for, all or an error.

        Raises:
            ResourceError: the machine has not enough left.
            ConfigError: the role to share with is not running.
        """
        self.check_memory(job)
        beside = job.together_with
        if beside is not None and beside.role not in self._grants:
            raise ConfigError(
                f"role {job.role!r} is placed together with {beside.role!r}, which is not running",
                fix=f"submit {beside.role!r} first",
            )
        if beside is not None and beside.share is Share.DEVICES:
            devices = self._share(job, self._grants[beside.role])
        else:
            devices = self._pool.take(job.device, job.num_workers, job.devices_per_worker)
        self._grants[job.role] = Grant(job, devices)
        return self._grants[job.role]

    def give_back(self, role: str) -> None:
        """Take back what a job held; a device that another job holds too stays with that one. Idempotent."""
        grant = self._grants.pop(role, None)
        if grant is None:
            return
        kind = grant.job.device
        held = set(_ids(other for other in self._grants.values() if other.job.device == kind))
        free = tuple(device for device in _ids([grant]) if device not in held)
        self._pool.give_back(kind, [free])

    def check_memory(self, job: Job) -> None:
        promised = sum(grant.memory for grant in self._grants.values())
        wanted = job.memory * job.num_workers
        if wanted and wanted > self.memory - promised:
            raise ResourceError(
                f"role {job.role!r} wants {_gib(wanted)} of host memory, {_gib(self.memory - promised)} are left",
                why=f"{job.num_workers} workers with {_gib(job.memory)} each; the machine has {_gib(self.memory)}",
                fix=f"lower {job.role.partition('.')[0]}.placement.memory_gib, or use fewer workers",
            )

    def _share(self, job: Job, owner: Grant) -> list[Devices]:
        """Return devices of another job that have no guest yet, in rank order."""
        if job.device != owner.job.device:
            raise ResourceError(
                f"role {job.role!r} cannot share the devices of {owner.job.role!r}",
                why=f"it runs on {job.device}, the other on {owner.job.device}",
            )
        if job.device == "cpu":
            return [()] * job.num_workers
        guests = set(_ids(grant for grant in self._grants.values() if _shares_with(grant.job, owner.job.role)))
        free = [device for device in _ids([owner]) if device not in guests]
        each = job.devices_per_worker
        if job.num_workers * each > len(free):
            raise ResourceError(
                f"role {job.role!r} wants {job.num_workers * each} devices of {owner.job.role!r}, {len(free)} are free",
                why="a device has one guest at most",
                fix="use fewer ranks or replicas, or share the host only",
            )
        return [tuple(free[rank * each : (rank + 1) * each]) for rank in range(job.num_workers)]


def _ids(grants: Iterable[Grant]) -> list[str]:
    return [device for grant in grants for ids in grant.devices for device in ids]


def _shares_with(job: Job, role: str) -> bool:
    beside = job.together_with
    return beside is not None and beside.role == role and beside.share is Share.DEVICES


def _gib(number: int) -> str:
    return f"{number / 2**30:.3g} GiB"
