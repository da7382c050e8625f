"""Broken schedulers that put jobs beside the wrong neighbours: hosts, shared devices, memory, and where ranks meet.

Knows: how the local scheduler, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job
from areal_core.plugins.claims import not_yet
from areal_core.worker.rendezvous import init_method
from areal_local.scheduler import capacity, local_scheduler
from areal_local.scheduler.capacity import Capacity, Grant
from areal_local.scheduler.environment import worker_environment
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_proof.mutants.rows import Original, after, breaking, given, put, row, then, within
from areal_proof.second.scheduler import SecondScheduler, SecondWorker

breaks_local = breaking("scheduler/local", LocalScheduler)
breaks_second_on_one = breaking("scheduler/second", SecondScheduler)
breaks_second = breaking("scheduler/second", SecondScheduler, part=("worker_class", SecondWorker))

_IGNORED = not_yet("it is not looked at")


SECOND_ROWS = breaks_second.rows(
    row("ControllerChooses", "Lets ranks meet at a port of the controller's machine.", "scheduler.rendezvous.worker",
        call=lambda original, method, args, timeout_s: init_method("127.0.0.1") if method == "rendezvous"
            else original(method, *args, timeout_s=timeout_s)),
    row("OnePortForEverybody", "Names the same port to every group of ranks.", "scheduler.rendezvous.worker",
        call=lambda original, self, method, args, timeout_s: f"tcp://{self.host}:15999" if method == "rendezvous"
            else original(method, *args, timeout_s=timeout_s)),
    row("MeetsWhereNobodyIs",
        "Names an address that is of no interface of rank 0's machine, as that of a gateway would be.",
        "scheduler.rendezvous.meets",
        call=after(lambda result, self, method: result.replace(self.host, "192.0.2.7") if method == "rendezvous"
            else result)),
    row("ListensElsewhereToo", "Its workers listen at an address beside the one their handles tell.",
        "scheduler.access.where_told",
        command=("-P", "-m", "areal_proof.mutants.scheduler_workers", "listens-elsewhere")),
)  # fmt: skip


class _Places(SecondScheduler):
    """Places workers by a rule of its own."""

    def hosts_for(self, job: Job) -> Sequence[str]:
        return self.places(job, super().hosts_for(job))

    def places(self, job: Job, hosts: Sequence[str]) -> Sequence[str]:
        """Return the hosts to fill, in order."""
        return hosts


SECOND_ON_ONE_ROWS = breaks_second_on_one.rows(
    row("FewerHostsWillDo", "Runs a job on the hosts there are.", "scheduler.place.too_many",
        submit=given(num_hosts=lambda job, self: min(job.num_hosts, len(self.config.hosts)),
            num_workers=lambda job: min(job.num_workers, 4))),
    row("GuestsPileUp", "Lets every guest have the first device of the role.", "scheduler.together.devices",
        is_beside=lambda: False),
    row("GuestsAreForgotten",
        "Gives a shared device to the next job as soon as one of the two is gone, and a second time later.",
        "scheduler.together.returned", unheld=lambda ids: ids),
)  # fmt: skip


@breaks_local("submit", "scheduler.together.absent")
async def CompanyIsOptional(original: Original, self: LocalScheduler, job: Job) -> Any:
    """Starts a job by itself where the role it is to be together with does not run."""
    beside = job.together_with
    alone = beside is not None and not self.poll(beside.role)
    return await original(attrs.evolve(job, together_with=None) if alone else job)


class _PromisesTwice(Capacity):
    def check_memory(self, job: Job) -> None:
        wanted = job.memory * job.num_workers
        if wanted > self.memory:
            raise ResourceError(f"{job.role!r} wants {wanted} bytes", why=f"the machine has {self.memory}")


class _GuestsOverlap(Capacity):
    def take(self, job: Job) -> Grant:
        grant, each = super().take(job), job.devices_per_worker
        if job.together_with is None:
            return grant
        ids = [one for own in grant.devices for one in own]
        return Grant(job, [tuple(ids[rank : rank + each]) for rank in range(job.num_workers)])


class _CountsOne(Capacity):
    def check_memory(self, job: Job) -> None:
        super().check_memory(attrs.evolve(job, num_workers=1))


class _OfOne(Grant):
    @property
    def memory(self) -> int:
        """Return what was promised to one of its workers."""
        return self.job.memory


class _KeepsDevices(Capacity):
    def check_memory(self, job: Job) -> None:
        try:
            super().check_memory(job)
        except ResourceError:
            self._pool.take(job.device, job.num_workers, job.devices_per_worker)
            raise


def _of_the_shell(job: Job, own_devices: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    made = worker_environment(job, own_devices, environ)
    return made | {name: value for name, value in environ.items() if name.endswith("_NUM_THREADS")} | dict(job.env)


def _counting_all_time(worker: Any) -> Any:  # Any: a worker of the local scheduler
    worker.become_ready = partial(_ready_at_once, worker.become_ready)
    return worker


async def _ready_at_once(ready: Original, *given: Any, max_gap_s: float) -> None:
    await ready(*given, max_gap_s=1e9)


async def _all_of_them(starts: Sequence[Any], statuses: Any, timeout_s: float) -> None:
    ended = await asyncio.wait_for(asyncio.gather(*starts, return_exceptions=True), timeout_s)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome


LOCAL_ROWS = breaks_local.rows(
    row("WaitsForTheSlow", "Tells of a worker that ended once all others have started.",
        "scheduler.gang.names_the_dead",
        submit=within(lambda: put(local_scheduler, all_started=_all_of_them))),
    row("ThreadsOfTheShell", "Gives workers the threads that the controller's environment names, over their job's.",
        "scheduler.env.over_all", start_worker=within(lambda: put(local_scheduler, worker_environment=_of_the_shell))),
    row("OwnSilenceCounts", "Takes workers for silent whose signs of life it had no time to hear.",
        "scheduler.silence.of_its_own", start_worker=after(lambda result: _counting_all_time(result))),
    row("DevicesOfTheirOwn", "Gives devices of its own to a job that is to share another's.",
        "scheduler.together.devices", submit=given(together_with=None)),
    row("GuestsOverlap", "Gives guests of one job devices that begin one behind the other, however many each has.",
        "scheduler.together.devices", __init__=then(lambda self: setattr(self.capacity, "__class__", _GuestsOverlap))),
    row("MemoryIsNotLookedAt", "Claims to keep memory for workers, and starts them whatever they ask for.",
        "scheduler.memory.impossible", "scheduler.memory.promised", submit=given(memory=0)),
    row("MemoryPromisedTwice",
        "Holds every job against all of the machine's memory, not against what others left of it.",
        "scheduler.memory.promised", __init__=then(lambda self: setattr(self.capacity, "__class__", _PromisesTwice))),
    row("MemoryOfOneAsked", "Looks whether there is memory for one worker, however many a job has.",
        "scheduler.memory.every_worker", __init__=then(lambda self: setattr(self.capacity, "__class__", _CountsOne))),
    row("MemoryOfOneKept", "Keeps the memory of one worker of a job, however many it has.",
        "scheduler.memory.every_worker", submit=within(lambda: put(capacity, Grant=_OfOne))),
    row("RefusedAndKept", "Keeps the devices of a job that it refuses for want of memory.",
        "scheduler.memory.and_devices", __init__=then(lambda self: setattr(self.capacity, "__class__", _KeepsDevices))),
)  # fmt: skip


breaks = breaking("scheduler/second", _Places)
ROWS = breaks.rows(
    row("OneHostIsAWish", "Spreads over every host it has, also a job for one.", "scheduler.place.one_host",
        places=lambda self: self.config.hosts),
    row("PacksTheFirstHost", "Fills the first host, however many were asked for.", "scheduler.place.spread",
        places=lambda hosts: hosts[:1]),
    row("DealsInTurn", "Deals ranks out to the hosts in turn, so that neighbours are apart.", "scheduler.place.spread",
        places=lambda job, hosts: [hosts[rank % len(hosts)] for rank in range(job.num_workers)]),
    row("NamesAreAHint", "Places a job on the first host, whichever it names.", "scheduler.place.named",
        places=lambda self, hosts: self.config.hosts[: len(hosts)]),
    row("NeighboursAreApart", "Places a job that is to share hosts wherever there is room.", "scheduler.together.host",
        places=lambda self, job, hosts: self.config.hosts[:1] if job.together_with else hosts),
    row("IgnoresWhatItDoesNotClaim", "Starts jobs that ask for what it does not claim, as if they had not asked.",
        "scheduler.refuse.hosts_one", "scheduler.refuse.hosts_spread", "scheduler.refuse.hosts_named",
        "scheduler.refuse.memory", "scheduler.refuse.image", "scheduler.refuse.together_host",
        "scheduler.refuse.together_devices",
        claims=dict.fromkeys(("hosts.one", "hosts.spread", "hosts.named", "memory", "image", "together.host",
            "together.devices"), _IGNORED),
        submit=lambda original, job: original(
            attrs.evolve(job, num_hosts=0, hosts=(), memory=0, image=None, together_with=None)),
        places=lambda self, job: self.config.hosts[-job.num_workers :]),
)  # fmt: skip
