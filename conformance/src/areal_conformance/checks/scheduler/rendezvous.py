"""Where ranks meet: rank 0's own process chooses, for only it can tell which of its ports is free.

Knows: the shape of an address, and ranks that really meet.
Does not know: process groups.
"""

from __future__ import annotations

import asyncio
from urllib.parse import SplitResult, urlsplit

from areal_conformance.benches.scheduler import CALL_S, SchedulerBench
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import WORKER
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec

_ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737)."""
_MEET_S = 20.0


@check("scheduler.rendezvous.worker", level=Level.SINGLE, law=9, spec=WORKER, since=(1, 1))
async def chosen_by_the_worker(bench: SchedulerBench) -> None:
    """A worker names a port of the address its handle tells, another one each time, and none of another machine."""
    async with bench.scheduler() as scheduler:
        workers = list(await scheduler.submit(bench.job("actor", num_workers=2, engine_role="train")))
        for worker in workers:
            given = [await _rendezvous(worker) for _ in range(2)]
            for address in given:
                seen = (address.scheme, address.hostname)
                expect(
                    seen == ("tcp", worker.host), f"{worker.id} is at {worker.host}, and meets at {address.geturl()}"
                )
                expect(bool(address.port), f"{worker.id} names no port: {address.geturl()}")
            expect(given[0].port != given[1].port, f"{worker.id} gives port {given[0].port} to two groups of ranks")
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


async def _rendezvous(worker: Worker) -> SplitResult:
    answer = await worker.call("rendezvous", worker.host, timeout_s=CALL_S)
    expect(isinstance(answer, str), f"{worker.id} meets at {answer!r}, which is no address")
    return urlsplit(str(answer))


def _context(rank: int, address: str) -> RankContext:
    return RankContext(rank=rank, world_size=4, local_rank=0, device="cpu", init_method=address, timeout_s=_MEET_S / 2)
