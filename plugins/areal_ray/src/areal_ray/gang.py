"""The workers of one job, and what they share with those of another: machines, or devices.

Knows: who is whose guest, and that a device has one guest at most.
Does not know: Ray's placement groups (`placement`), or how workers start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import define, field
from ray.util.placement_group import PlacementGroup

from areal_core.contract.device import CPU
from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job, Share
from areal_ray.ray_worker import RayWorker

Lot = tuple[str, tuple[str, ...]]
"""Ray's id of a machine, and ids of devices there."""


@define(eq=False)
class Gang:
    """The workers of one job, and what Ray keeps for them."""

    job: Job
    group: PlacementGroup | None = None
    workers: list[RayWorker] = field(factory=list)
    shared: list[Lot] = field(factory=list)
    """Of each worker that owns no devices but shares some, in rank order."""
    lender: Gang | None = None
    """Whose devices those are: what Ray keeps for it is kept for as long as this one needs them."""
    share: Mapping[str, float] = field(factory=dict)
    """What each worker takes of Ray's resources."""


def no_more_needed(ended: Gang, living: Collection[Gang]) -> list[PlacementGroup]:
    """Return what Ray need not keep any longer, after the end of a job: its own, unless it lends devices to another.

    And that of the job it was lent devices by, if that one has ended before, and it was the last guest.
    """
    done = [each for each in (ended, ended.lender) if each is not None and each not in living]
    return [each.group for each in done if each.group and not any(other.lender is each for other in living)]


def machines_beside(job: Job, gangs: Mapping[str, Gang]) -> list[str]:
    """Return the ids of the machines a job has to share with another role; none for any."""
    if job.together_with is None:
        return []
    return list(dict.fromkeys(worker.node for worker in gangs[job.together_with.role].workers))


def shared_devices(job: Job, gangs: Mapping[str, Gang]) -> list[Lot]:
    """Return what each worker shares of another role's devices, in rank order; nothing if it owns its own.

    Raises:
        ResourceError: too few of them are without a guest, or they are of another kind.
    """
    beside = job.together_with
    if beside is None or beside.share is Share.HOST or job.device == CPU:
        return []
    owner = gangs[beside.role]
    if owner.job.device != job.device:
        raise ResourceError(
            f"role {job.role!r} cannot share the devices of {beside.role!r}",
            why=f"it runs on {job.device}, the other on {owner.job.device}",
        )
    guests = {
        (node, device)
        for gang in gangs.values()
        if gang.job is not job and gang.job.together_with == beside
        for node, devices in gang.shared
        for device in devices
    }
    owned = [(each.node, device) for each in owner.workers for device in each.devices]
    free = [pair for pair in owned if pair not in guests]
    each = job.devices_per_worker
    lots = [free[start : start + each] for start in range(0, job.num_workers * each, each)]
    if any(len(lot) < each or len({node for node, _ in lot}) > 1 for lot in lots):
        raise ResourceError(
            f"role {job.role!r} wants {job.num_workers * each} devices of {beside.role!r}, {len(free)} are free",
            why=f"{job.num_workers} workers with {each} of one machine each; a device has one guest at most",
            fix="use fewer ranks or replicas, or share the host only",
        )
    return [(lot[0][0], tuple(device for _, device in lot)) for lot in lots]
