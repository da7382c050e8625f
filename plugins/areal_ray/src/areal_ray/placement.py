"""From a job to a placement group: what each bundle holds, how bundles are spread, and on which machines they may be.

Knows: Ray's resources and labels, and the machines of a cluster as Ray lists them.
Does not know: processes, or what is free at this moment: Ray does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from areal_core.contract.device import CPU, Device
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job

NODE_LABEL = "ray.io/node-id"
_UNCOUNTED = 0.001
"""Of a processor: Ray takes no bundle of nothing."""
_RAYS_OWN = ("node:", "object_store", "acc", "bundle_group")
"""How names of resources begin that no user asks for."""


@frozen(kw_only=True)
class Machine:
    """A machine of the cluster."""

    id: str
    address: str
    name: str
    resources: Mapping[str, float]

    def is_called(self, name: str) -> bool:
        """Tell whether a user means it: by Ray's id, its address or its host's name."""
        return name in (self.id, self.address, self.name)


@frozen(kw_only=True)
class Wish:
    """A placement group to ask Ray for."""

    bundles: Sequence[Mapping[str, float]]
    strategy: str
    machines: Sequence[Sequence[str]]
    """For each bundle, the ids of the machines it may be on; none for any."""
    bundle_of: Sequence[int]
    """Which bundle each worker, in rank order, has its share of; empty where each has one of its own in any order."""
    share: Mapping[str, float]
    """What one worker takes."""

    @property
    def spread(self) -> bool:
        """Return whether every bundle needs a machine of its own."""
        return self.strategy == "STRICT_SPREAD"

    def may_be_on(self, bundle: int, machine: Machine) -> bool:
        """Tell whether a bundle may be on a machine."""
        return not self.machines[bundle] or machine.id in self.machines[bundle]


def machines_of(nodes: Iterable[Mapping[str, object]]) -> list[Machine]:
    """Return the machines that live, from `ray.nodes()`."""
    return [
        Machine(
            id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            name=str(node["NodeManagerHostname"]),
            resources=dict(node["Resources"]),  # type: ignore[call-overload]  # Ray's own
        )
        for node in nodes
        if node["Alive"]
    ]


def wish(
    job: Job, device: Device, machines: Sequence[Machine], beside: Sequence[str] = (), *, count_cpus: bool
) -> Wish:
    """Return the placement group a job asks for.

    Args:
        device: the kind its workers own.
        beside: ids of the machines it has to share; empty for any.
        count_cpus: whether processors are given out too; on a Ray of the run's own they are not.

    Raises:
        ConfigError: its workers cannot be spread equally.
        ResourceError: a machine it names is not there.
    """
    share = _share(job, device, count_cpus)
    allowed = _named(job, machines, beside)
    if not job.num_hosts:
        many = job.num_workers
        return Wish(bundles=[share] * many, strategy="PACK", machines=[allowed] * many, bundle_of=(), share=share)
    if job.num_workers % job.num_hosts:
        raise ConfigError(
            f"{job.num_workers} workers of role {job.role!r} cannot be spread over {job.num_hosts} hosts",
            why="each host takes equally many",
        )
    each = job.num_workers // job.num_hosts
    bundle = {name: amount * each for name, amount in share.items()}
    return Wish(
        bundles=[bundle] * job.num_hosts,
        strategy="STRICT_SPREAD" if job.num_hosts > 1 else "STRICT_PACK",
        machines=[allowed] * job.num_hosts,
        bundle_of=[rank // each for rank in range(job.num_workers)],
        share=share,
    )


def wish_of_guests(job: Job, nodes: Sequence[str], *, count_cpus: bool) -> Wish:
    """Return the placement group of workers that share devices which another role owns: each on a given machine."""
    share = _share(job, None, count_cpus)
    ranks = range(job.num_workers)
    return Wish(bundles=[share for _ in ranks], strategy="PACK", machines=[[node] for node in nodes],
                bundle_of=list(ranks), share=share)  # fmt: skip


def shortage(wanted: Wish, machines: Sequence[Machine]) -> str:
    """Return why the machines could not hold it even if they were empty; nothing if they could, as far as seen here.

    Example: "2 x [CPU 1, GPU 4] asked for; there is node-a (10.0.0.1) with CPU 8, GPU 2"
    """
    allowed = _allowed(wanted, machines)
    times = [_times(each, wanted.bundles[0]) for each in allowed]
    room = sum(min(each, 1) for each in times) if wanted.spread else sum(times)
    return "" if room >= len(wanted.bundles) else described(wanted, machines)


def described(wanted: Wish, machines: Sequence[Machine]) -> str:
    """Return what is asked for, and what there is in all on the machines it may be on."""
    allowed = _allowed(wanted, machines)
    there = "; ".join(f"{each.name} ({each.address}) with {amounts(each.resources)}" for each in allowed)
    spread = " on as many machines" if wanted.spread else ""
    asked = f"{len(wanted.bundles)} x [{amounts(wanted.bundles[0])}]{spread} asked for"
    return f"{asked}; there is {there or 'no machine it may be on'}"


def _allowed(wanted: Wish, machines: Sequence[Machine]) -> list[Machine]:
    bundles = range(len(wanted.bundles))
    return [each for each in machines if any(wanted.may_be_on(number, each) for number in bundles)]


def _share(job: Job, device: Device | None, count_cpus: bool) -> dict[str, float]:
    share = {"CPU": float(job.cpus_per_worker) if count_cpus else _UNCOUNTED}
    if device is not None and device.name != CPU:
        share[device.resource] = float(job.devices_per_worker)
    if job.memory:
        share["memory"] = float(job.memory)
    return share


def _named(job: Job, machines: Sequence[Machine], beside: Sequence[str]) -> list[str]:
    """Return the ids of the machines a job may be on; none for any."""
    missing = [name for name in job.hosts if not any(machine.is_called(name) for machine in machines)]
    if missing:
        raise ResourceError(
            f"role {job.role!r} is to run on {', '.join(missing)}, which the cluster does not have",
            why=f"its machines are {', '.join(f'{each.name} ({each.address})' for each in machines) or 'none'}",
            fix=f"correct {job.role.partition('.')[0]}.placement.hosts",
        )
    if not job.hosts:
        return list(beside)
    named = [each.id for each in machines if any(map(each.is_called, job.hosts))]
    both = [machine for machine in named if not beside or machine in beside]
    if not both:
        raise ResourceError(
            f"role {job.role!r} is to run on {', '.join(job.hosts)} and beside {job.together_with}",
            why="no machine is both",
        )
    return both


def _times(machine: Machine, bundle: Mapping[str, float]) -> int:
    return int(min(machine.resources.get(name, 0.0) // amount for name, amount in bundle.items()))


def amounts(resources: Mapping[str, float]) -> str:
    """Return resources for people, without those Ray keeps for itself. Example: "CPU 8, memory 16 GiB" """
    shown = {name: amount for name, amount in resources.items() if not name.startswith(_RAYS_OWN)}
    return ", ".join(f"{name} {_amount(name, amount)}" for name, amount in sorted(shown.items())) or "nothing"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB" if name == "memory" else f"{amount:g}"
