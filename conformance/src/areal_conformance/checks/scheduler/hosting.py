"""A training rank behind a worker: its calls never overlap, keep their order, and stay in one thread.

Knows: what an engine of collectives needs of whoever calls it.
Does not know: any engine.
"""

from __future__ import annotations

import asyncio
import json

from areal_conformance.benches.scheduler import CALL_S, SchedulerBench, told
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CALL
from areal_conformance.outcome import expect
from areal_core.contract.errors import RemoteError
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import RankContext, TrainSpec

_CALLS = 8


@check("scheduler.hosts.train", level=Level.SINGLE, law=9, spec=CALL)
async def hosts_train(bench: SchedulerBench) -> None:
    """Calls to a training rank are made one after another, in the order they were sent, in one thread."""
    async with bench.scheduler() as scheduler:
        workers = list(await scheduler.submit(bench.job("actor", num_workers=2, engine_role="train")))
        for rank, worker in enumerate(workers):
            context = RankContext(rank=rank, world_size=2, local_rank=rank, device="cpu", init_method="tcp://x:1")
            info = await worker.call("start", TrainSpec(role="actor", model_path="m"), context, timeout_s=CALL_S)
            seen = (info.data_rank, info.details["rank"], info.details["role"])
            expect(seen == (rank, str(rank), "actor"), f"rank {rank} of actor started as {seen}")
        await bench.soon(asyncio.gather(*(_sequence(worker) for worker in workers)), "calls to two ranks")
        wanted = ["start", *(line for n in range(_CALLS) for line in (f"Path w{n}", f"version {n}"))]
        for rank, worker in enumerate(workers):
            path = bench.folder / f"told-{rank}.json"
            await worker.call("save_state", str(path), timeout_s=CALL_S)
            noted = json.loads(path.read_text())
            expect(noted["log"] == wanted, f"calls sent as {wanted} reached rank {rank} as {noted['log']}")
            expect(not noted["overlapped"], f"two calls were at work at once in rank {rank}")
            expect(noted["threads"] == 1, f"calls of rank {rank} ran in {noted['threads']} threads")
        error = await bench.raised(workers[1].call("load_state", "/no/such/state", timeout_s=CALL_S), "load_state")
        expect(isinstance(error, RemoteError), f"an engine's FileNotFoundError arrived as {type(error).__name__}")
        expect("/no/such/state" in told(error), f"the error does not tell the path: {told(error)}")


async def _sequence(worker: Worker) -> None:
    """Send many calls at once, without waiting for any."""
    calls = []
    for number in range(_CALLS):
        calls.append(asyncio.create_task(worker.call("save_weights", f"/tmp/w{number}", timeout_s=CALL_S)))
        calls.append(asyncio.create_task(worker.call("set_version", number, timeout_s=CALL_S)))
    await asyncio.gather(*calls)
