"""Broken schedulers that put jobs beside the wrong neighbours: hosts, shared devices, memory, and where ranks meet.

Knows: how the local scheduler, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job, Together, Worker
from areal_core.plugins.claims import not_yet
from areal_core.worker.devices import Devices
from areal_core.worker.rendezvous import init_method
from areal_local.scheduler.capacity import Capacity
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_proof.mutants import mutant
from areal_proof.second.scheduler import SecondScheduler, SecondWorker

_IGNORED = not_yet("it is not looked at")


@mutant("scheduler/second", killers=("scheduler.rendezvous.worker",))
class ControllerChooses(SecondScheduler):
    """Lets ranks meet at a port of the controller's machine."""

    class worker_class(SecondWorker):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            if method == "rendezvous":
                return init_method("127.0.0.1")
            return await super().call(method, *args, timeout_s=timeout_s)


@mutant("scheduler/second", killers=("scheduler.rendezvous.worker",))
class OnePortForEverybody(SecondScheduler):
    """Names the same port to every group of ranks."""

    class worker_class(SecondWorker):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            if method == "rendezvous":
                return f"tcp://{self.host}:15999"
            return await super().call(method, *args, timeout_s=timeout_s)


@mutant("scheduler/second", killers=("scheduler.rendezvous.meets",))
class MeetsWhereNobodyIs(SecondScheduler):
    """Names an address that is of no interface of rank 0's machine, as that of a gateway would be."""

    class worker_class(SecondWorker):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            answer = await super().call(method, *args, timeout_s=timeout_s)
            return answer.replace(self.host, "192.0.2.7") if method == "rendezvous" else answer


@mutant("scheduler/second", killers=("scheduler.access.where_told",))
class ListensElsewhereToo(SecondScheduler):
    """Its workers listen at an address beside the one their handles tell."""

    class worker_class(SecondWorker):
        command = ("-P", "-m", "areal_proof.mutants.scheduler_workers", "listens-elsewhere")


class _Places(SecondScheduler):
    """Places workers by a rule of its own."""

    def _hosts(self, job: Job) -> Sequence[str]:
        return self.places(job, super()._hosts(job))

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        """Return the hosts to fill, in order."""
        raise NotImplementedError


@mutant("scheduler/second", killers=("scheduler.place.one_host",))
class OneHostIsAWish(_Places):
    """Spreads over every host it has, also a job for one."""

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        return self._config.hosts


@mutant("scheduler/second", killers=("scheduler.place.spread",))
class PacksTheFirstHost(_Places):
    """Fills the first host, however many were asked for."""

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        return hosts[:1]


@mutant("scheduler/second", killers=("scheduler.place.spread",))
class DealsInTurn(_Places):
    """Deals ranks out to the hosts in turn, so that neighbours are apart."""

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        return [hosts[rank % len(hosts)] for rank in range(job.num_workers)]


@mutant("scheduler/second", killers=("scheduler.place.named",))
class NamesAreAHint(_Places):
    """Places a job on the first host, whichever it names."""

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        return self._config.hosts[: len(hosts)]


@mutant("scheduler/second", killers=("scheduler.place.too_many",))
class FewerHostsWillDo(SecondScheduler):
    """Runs a job on the hosts there are."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        fits = min(job.num_hosts, len(self._config.hosts))
        return await super().submit(attrs.evolve(job, num_hosts=fits, num_workers=min(job.num_workers, 4)))


@mutant("scheduler/second", killers=("scheduler.together.host",))
class NeighboursAreApart(_Places):
    """Places a job that is to share hosts wherever there is room."""

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        return self._config.hosts[:1] if job.together_with else hosts


@mutant("scheduler/local", killers=("scheduler.together.devices",))
class DevicesOfTheirOwn(LocalScheduler):
    """Gives devices of its own to a job that is to share another's."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return await super().submit(attrs.evolve(job, together_with=None))


@mutant("scheduler/second", killers=("scheduler.together.devices",))
class GuestsPileUp(SecondScheduler):
    """Lets every guest have the first device of the role."""

    def _is_beside(self, role: str, beside: Together) -> bool:
        return False


@mutant("scheduler/second", killers=("scheduler.together.returned",))
class GuestsAreForgotten(SecondScheduler):
    """Gives a shared device to the next job as soon as one of the two is gone, and a second time later."""

    def _unheld(self, kind: str, ids: Devices) -> Devices:
        return ids


@mutant("scheduler/local", killers=("scheduler.together.absent",))
class CompanyIsOptional(LocalScheduler):
    """Starts a job by itself where the role it is to be together with does not run."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        beside = job.together_with
        alone = beside is not None and not self.poll(beside.role)
        return await super().submit(attrs.evolve(job, together_with=None) if alone else job)


@mutant("scheduler/local", killers=("scheduler.memory.impossible", "scheduler.memory.promised"))
class MemoryIsNotLookedAt(LocalScheduler):
    """Claims to keep memory for workers, and starts them whatever they ask for."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        return await super().submit(attrs.evolve(job, memory=0))


class _PromisesTwice(Capacity):
    def _check_memory(self, job: Job) -> None:
        wanted = job.memory * job.num_workers
        if wanted > self._memory:
            raise ResourceError(f"{job.role!r} wants {wanted} bytes", why=f"the machine has {self._memory}")


@mutant("scheduler/local", killers=("scheduler.memory.promised",))
class MemoryPromisedTwice(LocalScheduler):
    """Holds every job against all of the machine's memory, not against what others left of it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._capacity.__class__ = _PromisesTwice


@mutant(
    "scheduler/second",
    killers=(
        "scheduler.refuse.hosts_one",
        "scheduler.refuse.hosts_spread",
        "scheduler.refuse.hosts_named",
        "scheduler.refuse.memory",
        "scheduler.refuse.image",
        "scheduler.refuse.together_host",
        "scheduler.refuse.together_devices",
    ),
    claims=dict.fromkeys(
        ("hosts.one", "hosts.spread", "hosts.named", "memory", "image", "together.host", "together.devices"), _IGNORED
    ),
)
class IgnoresWhatItDoesNotClaim(_Places):
    """Starts jobs that ask for what it does not claim, as if they had not asked."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        plain = {"num_hosts": 0, "hosts": (), "memory": 0, "image": None, "together_with": None}
        return await super().submit(attrs.evolve(job, **plain))  # type: ignore[arg-type]

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        return self._config.hosts[-job.num_workers :]
