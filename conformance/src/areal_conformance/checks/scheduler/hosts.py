"""Which hosts workers run on, where ranks meet, and how much of a host's memory is promised to a job.

Knows: addresses that handles and ranks tell; sizes that are refused and sizes that are not, found by asking.
Does not know: what a host is, loopback aliases may play them; process groups; how memory is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from urllib.parse import SplitResult, urlsplit

from areal_conformance.benches.scheduler import CALL_S, SchedulerBench, ask, told
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB, WORKER
from areal_conformance.checks.scheduler.devices import kind_of, seeing
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, ResourceError
from areal_core.contract.scheduler import Scheduler, Worker
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec

_MANY = 4096
rule = partial(check, level=Level.SINGLE, law=0, spec=JOB, requires=("hosts.spread",), since=(1, 1))


@rule("scheduler.place.one_host", requires=("hosts.one",))
async def one_host(bench: SchedulerBench) -> None:
    """All workers of a job for one host are at one address, and answer there."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("gang", num_workers=3, num_hosts=1))
        expect(len(set(_hosts(workers))) == 1, f"a job for one host is on {_hosts(workers)}")
        await _all_answer(workers)


@rule("scheduler.place.spread")
async def spread(bench: SchedulerBench) -> None:
    """Hosts are filled in rank order, each with equally many workers."""
    async with bench.scheduler() as scheduler:
        workers = await bench.start(scheduler, bench.job("gang", num_workers=4, num_hosts=2))
        first, _, _, last = hosts = _hosts(workers)
        expect(hosts == [first, first, last, last] and first != last, f"four workers on two hosts are on {hosts}")
        await _all_answer(workers)


@rule("scheduler.place.named", requires=("hosts.named", "hosts.spread"))
async def named(bench: SchedulerBench) -> None:
    """A job that names a host runs there and nowhere else; a host that is not there is refused by its name."""
    async with bench.scheduler() as scheduler:
        known = _hosts(await scheduler.submit(bench.job("all", num_workers=2, num_hosts=2)))
        for number, host in enumerate(known):
            workers = await bench.start(scheduler, bench.job(f"there-{number}", num_workers=2, hosts=(host,)))
            expect(set(_hosts(workers)) == {host}, f"a job for {host} is on {_hosts(workers)}")
            await _all_answer(workers)
        before = bench.processes()
        work = scheduler.submit(bench.job("nowhere", hosts=("no-such-host",)))
        await bench.raised(ResourceError, work, "a job for a host that is not there", "no-such-host")
        await bench.gone(bench.processes() - before, "after a job for a host that is not there")


@rule("scheduler.place.too_many", law=8)
async def too_many(bench: SchedulerBench) -> None:
    """More hosts than there are, and workers that cannot be dealt out evenly, are refused; nothing is started."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        work = scheduler.submit(bench.job("wide", num_workers=_MANY, num_hosts=_MANY))
        await bench.raised(ResourceError, work, f"a job for {_MANY} hosts", str(_MANY))
        work = scheduler.submit(bench.job("odd", num_workers=3, num_hosts=2))
        await bench.raised(BaseException, work, "three workers on two hosts")
        await bench.gone(bench.processes() - before, "after jobs that were refused")


def _hosts(workers: Sequence[Worker]) -> list[str]:
    return [worker.host for worker in workers]


async def _all_answer(workers: Sequence[Worker]) -> None:
    answers = await asyncio.gather(*(ask(worker, "echo", value=worker.id) for worker in workers))
    expect([one["value"] for one in answers] == [worker.id for worker in workers], f"asked for their ids: {answers}")


_EXBIBYTE = 2**60
_LEAST = 2**20
memory_rule = partial(check, level=Level.SINGLE, law=8, spec=JOB, requires=("memory",), since=(1, 1))


@memory_rule("scheduler.memory.impossible")
async def impossible(bench: SchedulerBench) -> None:
    """Memory that no machine has is refused as a resource, nothing is started, and the role stays free."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        expect(await _is_refused(bench, scheduler, "large", _EXBIBYTE), "an exbibyte for each worker was granted")
        await bench.gone(bench.processes() - before, "after a job that was refused")
        expect(tuple(scheduler.poll("large")) == (), "poll tells of workers of a job that was refused")
        await bench.start(scheduler, bench.job("large", memory=_LEAST))


@memory_rule("scheduler.memory.promised", law=0, unless=("hosts.spread",))
async def promised(bench: SchedulerBench) -> None:
    """Of one machine, two jobs do not both get more than half; what a job had is there again once it is gone."""
    async with bench.scheduler() as scheduler:
        size = await _first_granted(bench, scheduler, "one")
        shared = not await _is_refused(bench, scheduler, "two", size)
        expect(not shared, f"{size} bytes were granted twice, {2 * size} were not")
        await scheduler.cancel("one")
        expect(not await _is_refused(bench, scheduler, "two", size), f"{size} bytes are not free again")


@memory_rule("scheduler.memory.every_worker", law=0, unless=("hosts.spread",))
async def every_worker(bench: SchedulerBench) -> None:
    """What a job has of one machine is its workers' memory together, where it is asked for and where another job is."""
    async with bench.scheduler() as scheduler:
        size = await _first_granted(bench, scheduler, "one")
        await scheduler.cancel("one")
        expect(
            await _is_refused(bench, scheduler, "pair", size, 2), f"two got {size} bytes each, one not twice as many"
        )
        most = size + size // 2
        if await _is_refused(bench, scheduler, "one", most):
            most = size
        await scheduler.cancel("one")  # now the machine has as much, and less than half of size beside it
        expect(not await _is_refused(bench, scheduler, "pair", most // 2, 2), f"{most} bytes are not free for two")
        beside = not await _is_refused(bench, scheduler, "other", size // 2)
        expect(not beside, f"beside 2 workers with {most // 2} bytes each another got {size // 2}")


@memory_rule("scheduler.memory.and_devices", law=10, unless=("hosts.spread",))
async def and_devices(bench: SchedulerBench) -> None:
    """A job that is refused for want of memory keeps no device, and one for want of devices no memory."""
    kind = kind_of(bench)
    await bench.alone()
    with seeing(kind, "3,5"):
        async with bench.scheduler() as scheduler:
            size = await _first_granted(bench, scheduler, "plain")
            await scheduler.cancel("plain")
            large = {"num_workers": 2, "memory": _EXBIBYTE}
            wide = {"num_workers": 3, "memory": size // 3}
            for what, fields in {"an exbibyte for each worker": large, "3 devices of 2": wide}.items():
                work = scheduler.submit(bench.job("greedy", device=kind.name, **fields))
                await bench.raised(ResourceError, work, f"a job of {what}")
            await scheduler.submit(bench.job("modest", num_workers=2, device=kind.name, memory=size // 2))


async def _first_granted(bench: SchedulerBench, scheduler: Scheduler, role: str) -> int:
    """Start a job of one worker with the first half, quarter, ... of an exbibyte that there is; return the bytes."""
    size = _EXBIBYTE
    while size > _LEAST and await _is_refused(bench, scheduler, role, size):
        size //= 2
    expect(size < _EXBIBYTE, "an exbibyte was granted")
    return size


async def _is_refused(bench: SchedulerBench, scheduler: Scheduler, role: str, size: int, num_workers: int = 1) -> bool:
    try:
        await scheduler.submit(bench.job(role, num_workers=num_workers, memory=size))
    except ResourceError as error:
        expect(role in told(error), f"the refusal does not name the role: {told(error)}")
        return True
    return False


_ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737)."""
_MEET_S = 20.0


@check("scheduler.rendezvous.worker", level=Level.SINGLE, law=9, spec=WORKER, since=(1, 1))
async def chosen_by_the_worker(bench: SchedulerBench) -> None:
    """A worker names a port of the address its handle tells, another one each time, and none of another machine.

    Where all ranks are on its host it may name another kind of place, and that is another one each time as well.
    """
    async with bench.scheduler() as scheduler:
        workers = list(await scheduler.submit(bench.job("actor", num_workers=2, engine_role="train")))
        for worker in workers:
            given = [await _rendezvous(worker) for _ in range(2)]
            for address in given:
                its_own = (address.scheme, address.hostname) == ("tcp", worker.host)
                expect(its_own, f"{worker.id} is at {worker.host}, and meets at {address.geturl()}")
                expect(bool(address.port), f"{worker.id} names no port: {address.geturl()}")
            expect(given[0].port != given[1].port, f"{worker.id} gives port {given[0].port} to two groups of ranks")
            here = [await _rendezvous(worker, True) for _ in range(2)]
            expect(here[0] != here[1], f"{worker.id} gives {here[0].geturl()} to two groups of ranks on its host")
        asked = workers[0].call("rendezvous", _ELSEWHERE, timeout_s=CALL_S)
        await bench.raised(ArealError, asked, "a rendezvous at another machine's address")


@check("scheduler.rendezvous.meets", level=Level.SINGLE, law=9, spec=WORKER, since=(1, 1))
async def meets(bench: SchedulerBench) -> None:
    """Ranks of a job find one another at the address that rank 0 chose, on several hosts where there are."""
    spread = {"num_hosts": 2} if bench.target.claimed("hosts.spread") else {}
    async with bench.scheduler() as scheduler:
        workers = list(await scheduler.submit(bench.job("actor", num_workers=4, engine_role="train", **spread)))
        address = (await _rendezvous(workers[0])).geturl()
        spec = TrainSpec(role="actor", model_path="m", options={"meet": True})
        starts = [
            worker.call("start", spec, _context(n, address), timeout_s=CALL_S) for n, worker in enumerate(workers)
        ]
        infos: list[EngineInfo] = await bench.soon(asyncio.gather(*starts), f"ranks that meet at {address}", _MEET_S)
        met = [info.details.get("met") for info in infos]
        expect(met == ["0,1,2,3"] * 4, f"at {address} the ranks met {met}")


async def _rendezvous(worker: Worker, *on_one_host: bool) -> SplitResult:
    answer = await worker.call("rendezvous", worker.host, *on_one_host, timeout_s=CALL_S)
    expect(isinstance(answer, str), f"{worker.id} meets at {answer!r}, which is no address")
    return urlsplit(str(answer))


def _context(rank: int, address: str) -> RankContext:
    return RankContext(rank=rank, world_size=4, local_rank=0, device="cpu", init_method=address, timeout_s=_MEET_S / 2)
