"""Workers on the machines of a Ray cluster: all of a job or none, no device twice, nothing left behind.

Knows: gangs, placement groups, and which worker died or fell silent.
Does not know: who shares devices with whom (`gang`), what workers compute, how their processes start (`relay`), or
what the run does when one is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job, Worker, WorkerStatus
from areal_core.plugins.devices import device_named
from areal_core.plugins.registry import default_registry
from areal_local.scheduler.stalls import StallWatch
from areal_local.scheduler.starting import all_started, check_job, made_folder
from areal_ray.cluster import Cluster, join
from areal_ray.config import RayConfig
from areal_ray.gang import Gang, machines_beside, no_more_needed, shared_devices
from areal_ray.manifest import RAY
from areal_ray.placement import (
    NODE_LABEL,
    Machine,
    Wish,
    amounts,
    described,
    machines_of,
    shortage,
    wish,
    wish_of_guests,
)
from areal_ray.ray_worker import RayWorker
from areal_ray.relay import Relay, carried

LOOK_S = 0.1
_PLACING_S = 0.02
_SKEW_S = 5.0
_JOIN_S = 60.0
_LOOPBACK = "127.0.0.1"

logger = logging.getLogger(__name__)


class RayScheduler:
    """Satisfies `contract.Scheduler`. Made and used in one event loop.

    It joins the cluster with its first job. Every worker ends when the controller does, however it ends: Ray ends the
    relays of a driver that is gone, and a worker's watchdog sees its relay go.
    """

    manifest = RAY
    """What `submit` refuses to go beyond."""

    def __init__(self, config: RayConfig | None = None, *, clock: Clock | None = None) -> None:
        """Start nothing yet.

        Args:
            clock: times the watch over runs that do not move.
        """
        self.config = config or RayConfig()
        self._clock = clock or SystemClock()
        self._gangs: dict[str, Gang] = {}
        self._cluster: Cluster | None = None
        self._joining = asyncio.Lock()
        self._stalls = StallWatch(self.config, self._running)
        self._watch: asyncio.Task[None] | None = None
        self._skewed: set[str] = set()

    async def submit(self, job: Job) -> Sequence[Worker]:
        """Start every worker of a job, or none; see `contract.Scheduler.submit`."""
        self._check(job)
        gang = self._gangs[job.role] = Gang(job)
        try:
            async with self._joining:
                cluster = self._cluster = self._cluster or await join(self.config.address, _JOIN_S)
            await self._place(gang, cluster)
            await self._begin(gang)
        except BaseException:
            await asyncio.shield(self.cancel(job.role))
            raise
        for worker in gang.workers if job.engine_role == "train" else ():
            worker.client.on_late = partial(self._stalls.late, worker)
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_run(), name="areal-run-watch")
        return tuple(worker.client for worker in gang.workers)

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        """Return the state of each worker of a role, in rank order; nothing for a role that does not run."""
        if self._watch is not None and self._watch.done():
            self._watch.result()  # a watch that broke must not look like workers that are well
        gang = self._gangs.get(role)
        self._stalls.check(gang.job.engine_role if gang else "", gang.workers if gang else ())
        return () if gang is None else tuple(worker.status() for worker in gang.workers)

    async def cancel(self, role: str) -> None:
        """End every worker of a role and wait until they are gone. Idempotent."""
        gang = self._gangs.get(role)
        if gang is None:
            return
        await asyncio.gather(*(worker.end(self.config.stop_timeout_s) for worker in gang.workers))
        if self._gangs.get(role) is gang:
            del self._gangs[role]
            for group in no_more_needed(gang, self._gangs.values()):
                await asyncio.to_thread(remove_placement_group, group)

    async def close(self) -> None:
        """Cancel everything, and leave the cluster; one that was started for this run ends. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait((watch,))
        try:
            await asyncio.gather(*(self.cancel(role) for role in tuple(self._gangs)))
        finally:
            cluster, self._cluster = self._cluster, None
            if cluster is not None:
                await cluster.left()

    def _check(self, job: Job) -> None:
        check_job(job, self.manifest, self._gangs)
        if job.together_with is not None and job.together_with.role not in self._gangs:
            beside = job.together_with.role
            raise ConfigError(
                f"role {job.role!r} is placed together with {beside!r}, which is not running",
                fix=f"submit {beside!r} first",
            )

    async def _place(self, gang: Gang, cluster: Cluster) -> None:
        """Have Ray keep room for the gang, and make its workers' relays there."""
        job, machines = gang.job, await _machines()
        gang.shared = shared_devices(job, self._gangs)
        if gang.shared:
            assert job.together_with is not None
            gang.lender = self._gangs[job.together_with.role]
            wanted = wish_of_guests(job, [node for node, _ in gang.shared], count_cpus=not cluster.own)
        else:
            device = device_named(default_registry(), job.device)
            wanted = wish(job, device, machines, machines_beside(job, self._gangs), count_cpus=not cluster.own)
        gang.group = await self._room(job, wanted, machines)
        gang.share = wanted.share
        nodes = placement_group_table(gang.group)["bundles_to_node_id"]
        bundles = wanted.bundle_of or sorted(range(job.num_workers), key=lambda bundle: (nodes[bundle], bundle))
        addresses = {each.id: _LOOPBACK if cluster.own else each.address for each in await _machines()}
        folder = made_folder(self.config.log_dir)
        for rank, bundle in enumerate(bundles):
            relay = ray.remote(Relay).options(**_asked(wanted, gang.group, bundle)).remote()
            gang.workers.append(RayWorker(job, rank, relay, addresses[nodes[bundle]], nodes[bundle], folder))

    async def _room(self, job: Job, wanted: Wish, machines: Sequence[Machine]) -> PlacementGroup:
        """Return a placement group that has its place.

        Raises:
            ResourceError: the machines have no room, within the time.
        """
        lacking = shortage(wanted, machines)
        if lacking and not self.config.wait_for_machines_s:
            raise _no_room(job, lacking, "no machine there could hold it")
        limit_s = max(self.config.room_timeout_s, self.config.wait_for_machines_s)
        group: PlacementGroup = placement_group(
            [dict(bundle) for bundle in wanted.bundles],
            strategy=wanted.strategy,
            bundle_label_selector=[{NODE_LABEL: f"in({','.join(ids)})"} if ids else {} for ids in wanted.machines],
        )
        try:
            async with asyncio.timeout(limit_s):
                while placement_group_table(group)["state"] != "CREATED":  # noqa: ASYNC110  # Ray tells who asks
                    await asyncio.sleep(_PLACING_S)
        except BaseException as error:
            remove_placement_group(group)
            if isinstance(error, TimeoutError):
                why = f"nothing became free within {limit_s:g} s; {await self._taken()}"
                raise _no_room(job, described(wanted, machines), why) from None
            raise
        return group

    async def _taken(self) -> str:
        """Return what nobody holds now, and what this run does."""
        free = amounts(await asyncio.to_thread(ray.available_resources))
        placed = {role: gang for role, gang in self._gangs.items() if gang.workers}
        ours = ", ".join(f"{role} {len(gang.workers)} x [{amounts(gang.share)}]" for role, gang in placed.items())
        return f"free now: {free}; this run holds: {ours or 'nothing'}"

    async def _begin(self, gang: Gang) -> None:
        shared = [devices for _, devices in gang.shared] or [()] * len(gang.workers)
        variables = carried(os.environ)
        heartbeat_s = self.config.heartbeat_timeout_s
        starts = [
            worker.begin(devices, variables, heartbeat_timeout_s=heartbeat_s)
            for worker, devices in zip(gang.workers, shared, strict=True)
        ]
        await all_started(starts, [worker.status() for worker in gang.workers], self.config.start_timeout_s)
        for worker in gang.workers:
            self._tell_skew(worker)

    def _running(self) -> list[RayWorker]:
        return [worker for gang in self._gangs.values() for worker in gang.workers if worker.running]

    async def _watch_run(self) -> None:
        while True:
            self._stalls.look(self._clock.now())
            await self._clock.sleep(LOOK_S)

    def _tell_skew(self, worker: RayWorker) -> None:
        if abs(worker.clock_ahead_s) >= _SKEW_S and worker.host not in self._skewed:
            self._skewed.add(worker.host)
            logger.warning(
                "the clock of host %s is %+.0f s from the controller's: times in its logs cannot be compared\n"
                "  fix: run NTP on all machines",
                worker.host,
                worker.clock_ahead_s,
            )


async def _machines() -> list[Machine]:
    return machines_of(await asyncio.to_thread(ray.nodes))


def _asked(wanted: Wish, group: PlacementGroup, bundle: int) -> dict[str, object]:
    """Return the options of an actor that takes one worker's share of a bundle."""
    share = dict(wanted.share)
    return {
        "num_cpus": share.pop("CPU"),
        "num_gpus": share.pop("GPU", 0),
        "memory": int(share.pop("memory", 0)) or None,
        "resources": share,
        "max_restarts": 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    }


def _no_room(job: Job, lacking: str, why: str) -> ResourceError:
    name = job.role.partition(".")[0]
    return ResourceError(
        f"the Ray cluster has no room for role {job.role!r}",
        why=f"{lacking}; {why}",
        fix=f"use fewer ranks or replicas, lower {name}.placement.memory_gib, end what holds the rest (ray status), or "
        "set scheduler.options.wait_for_machines_s where machines join by themselves",
    )
