"""What a worker does with calls: a training rank's in order; objectives, transports, abilities that are optional.

Knows: how many calls come at once, how large they are, and what each of them should reach.
Does not know: how calls travel (`calls`), or what an engine is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from areal_conformance.benches.scheduler import CALL_S, SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CALL
from areal_conformance.outcome import expect
from areal_conformance.probes.trainer import NAME, PLAIN
from areal_conformance.probes.transfers import offer_of
from areal_core.contract.errors import CapabilityError, RemoteError
from areal_core.contract.scheduler import Scheduler, Worker
from areal_core.contract.train import ObjectiveSpec, RankContext, TrainSpec

_ALONE = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="tcp://x:1")
_CALLS = 8
_OPTIONAL_OF_RANKS = (
    *(("offload",), ("begin_state", "/a/state"), ("state_written",), ("finish_state",)),
    *(("begin_state", "/another"), ("onload",), ("finish_state",)),
)
_NOTED_BY_RANKS = ("offload", "begin Path state", "written", "finish", "begin Path another", "onload", "finish")
_FOLDERS = tuple("/a" + "/." * times for times in (0, 20_000, 50_000))
"""Names of one folder, of 2 bytes, 40 kB and 100 kB: small messages may travel together, and large ones in parts."""
_OPTIONAL = (
    *(("sleep",), ("load_adapter", "mine", "/an/adapter", 3), ("wake",), ("load_adapter", "yours", "/another", 4)),
    *(("unload_adapter", "mine"), ("abort_weights",), ("sleep",), ("wake",), ("unload_adapter", "yours")),
)


@check("scheduler.calls.optional", level=Level.SINGLE, law=1, spec=CALL, since=(1, 1))
async def optional(bench: SchedulerBench) -> None:
    """Methods of optional abilities reach the engine too, with every argument, and give its own result."""
    worker = await bench.worker()
    await ask(worker, "noted")
    scores = await worker.call("score", (5, 7, 9), 0.25, timeout_s=CALL_S)
    expect(list(scores) == [5.25, 7.25, 9.25], f"score of (5, 7, 9) at 0.25 returned {scores}")
    read = await worker.call("parse_tool_calls", "say it", ({"name": "add"}, {"name": "sub"}), timeout_s=CALL_S)
    told = (read.content, [call.name for call in read.calls])
    expect(told == ("say it", ["add", "sub"]), f"parse_tool_calls of 'say it' with two tools returned {read}")
    for method, *args in _OPTIONAL:
        result = await worker.call(method, *args, timeout_s=CALL_S)
        expect(result is None, f"{method} returned {result!r}")
    wanted = [tuple(call) if call[0] != "load_adapter" else (*call[:2], True, *call[2:]) for call in _OPTIONAL]
    noted = (await ask(worker, "noted"))["value"]
    expect(noted == wanted, f"called were {wanted}, noted (a path as True and its text) were {noted}")


@check("scheduler.hosts.train", level=Level.SINGLE, law=9, spec=CALL)
async def hosts_train(bench: SchedulerBench) -> None:
    """Calls to a training rank, large or small, are made one by one, in the order they were sent, in one thread."""
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
        work = workers[1].call("load_state", "/no/such/state", timeout_s=CALL_S)
        await bench.raised(RemoteError, work, "load_state", "/no/such/state")


@check("scheduler.hosts.objective", level=Level.SINGLE, law=1, spec=CALL)
async def hosts_objective(bench: SchedulerBench) -> None:
    """Each step is made with the objective its own call names, by name and configuration, whatever came before."""
    wanted = [("Aim", 1.0), ("Aim", 2.0), ("OtherAim", 2.0), ("Aim", 2.0), ("Aim", 1.0), ("Aim", 0.0)]
    names = {"Aim": NAME, "OtherAim": f"{NAME}_other"}
    async with bench.scheduler() as scheduler:
        worker = await _trainer(bench, scheduler)
        for aim, loss in wanted:
            spec = ObjectiveSpec(name=names[aim], config={"loss": loss} if loss else {})
            report = await worker.call("train_step", (), spec, timeout_s=CALL_S)
            given = [(name, one.value) for name, one in report.metrics.items()]
            expect(given == [(aim, loss)], f"a step with {spec} was made with {given}")


@check("scheduler.hosts.weights", level=Level.SINGLE, law=10, spec=CALL, since=(1, 1))
async def hosts_weights(bench: SchedulerBench) -> None:
    """Weights go by the transport their offer names; its ends are let go of, and the transport where a worker ends."""
    notes = bench.folder / "notes"
    well, badly = offer_of(notes, 3), offer_of(notes, 4, fails=True)
    async with bench.scheduler() as scheduler:
        trainer = await _trainer(bench, scheduler)
        (replica,) = await bench.start(scheduler, bench.job("rollout"))
        nothing = await trainer.call("send_weights", None, 3, timeout_s=CALL_S)
        expect(nothing is None, f"a rank without an offer sent weights: {nothing}")
        for worker, method, told in ((trainer, "send_weights", (3, 0)), (replica, "receive_weights", (3, 5))):
            receipt = await worker.call(method, well, told[1], timeout_s=CALL_S)
            seen = (receipt.version, receipt.num_bytes)
            expect(seen == told, f"{method} gave a receipt of version {seen[0]} and {seen[1]} bytes, not {told}")
            await bench.raised(RemoteError, worker.call(method, badly, 4, timeout_s=CALL_S), f"{method} that fails")
    lines = (await asyncio.to_thread(notes.read_text)).splitlines()
    wanted = ["sink of 3 made", "sink of 4 made", "sink of 4 aborted"]
    wanted += [f"source of {version} {what}" for version in (3, 4) for what in ("made", "closed")]
    wanted += 2 * ["transport closed"]
    expect(lines == wanted, f"of the ends of two transfers, the second of which fails, {lines}; due were {wanted}")


@check("scheduler.hosts.waits", level=Level.SINGLE, law=9, spec=CALL, since=(1, 1))
async def hosts_waits(bench: SchedulerBench) -> None:
    """While a transport waits for its other end, the replica answers other calls; then it has what was sent."""
    notes, there = bench.folder / "notes", bench.folder / "there"
    async with bench.scheduler() as scheduler:
        (replica,) = await bench.start(scheduler, bench.job("rollout"))
        offer = offer_of(notes, 3, waits=there)
        receiving = bench.doing(replica.call("receive_weights", offer, 5, timeout_s=CALL_S))
        await bench.until(notes.is_file, "the transport is asked for an end")
        given = await bench.soon(ask(replica, "echo", value=4), "a call of a replica whose transport waits")
        expect(given == {"value": 4}, f"echo of 4 got the reply {given}")
        expect(not receiving.done(), "weights were received before their transport had its other end")
        await asyncio.to_thread(there.touch)
        receipt = await bench.soon(receiving, "receive_weights")
        seen = (receipt.version, receipt.num_bytes)
        expect(seen == (3, 5), f"receive_weights gave a receipt of version {seen[0]} and {seen[1]} bytes")


_LACKING: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "infer": {
        "scoring": ("score", (1, 2), 1.0),
        "tools.parse": ("parse_tool_calls", "say it", ()),
        "memory.sleep": ("sleep",),
        "lora.adapters": ("load_adapter", "mine", "/an/adapter", 3),
    },
    "train": {"memory.offload": ("offload",), "checkpoint.background": ("begin_state", "/a/state")},
}
"""Role -> claim -> a call of a method that only engines have that make the claim. Any: its arguments."""


@check("scheduler.hosts.lacking", level=Level.SINGLE, law=8, spec=CALL, since=(1, 1))
async def hosts_lacking(bench: SchedulerBench) -> None:
    """A method of an ability that the engine does not have is refused, naming the ability, and the worker goes on."""
    async with bench.scheduler() as scheduler:
        (replica,) = await bench.start(scheduler, bench.job("rollout", backend=PLAIN))
        trainer = await _trainer(bench, scheduler, backend=PLAIN)
        for role, worker in (("infer", replica), ("train", trainer)):
            for claim, (method, *args) in _LACKING[role].items():
                work = worker.call(method, *args, timeout_s=CALL_S)
                await bench.raised(CapabilityError, work, f"{method} of an engine without it", claim)
        await trainer.call("set_version", 1, timeout_s=CALL_S)
        expect((await ask(replica, "echo", value=5))["value"] == 5, "a worker is of no use after a call was refused")


@check("scheduler.hosts.optional", level=Level.SINGLE, law=1, spec=CALL, since=(1, 1))
async def hosts_optional(bench: SchedulerBench) -> None:
    """Methods of a training rank's optional abilities reach it too, with every argument, and give its own result."""
    async with bench.scheduler() as scheduler:
        worker = await _trainer(bench, scheduler)
        for method, *args in _OPTIONAL_OF_RANKS:
            result = await worker.call(method, *args, timeout_s=CALL_S)
            due = False if method == "state_written" else None
            expect(result is due, f"{method} returned {result!r}, {due} was due")
        path = bench.folder / "told.json"
        await worker.call("save_state", str(path), timeout_s=CALL_S)
        noted, wanted = json.loads(path.read_text())["log"], ["start", *_NOTED_BY_RANKS]
        expect(noted == wanted, f"called were {_OPTIONAL_OF_RANKS}, noted were {noted}")


async def _trainer(bench: SchedulerBench, scheduler: Scheduler, backend: str = NAME) -> Worker:
    """Start a training role of one rank."""
    (worker,) = await scheduler.submit(bench.job("actor", engine_role="train", backend=backend))
    await worker.call("start", TrainSpec(role="actor", model_path="m"), _ALONE, timeout_s=CALL_S)
    return worker


async def _sequence(worker: Worker) -> None:
    """Send many calls at once, without waiting for any."""
    calls = []
    for number in range(_CALLS):
        folder = _FOLDERS[number % len(_FOLDERS)]
        calls.append(asyncio.create_task(worker.call("save_weights", f"{folder}/w{number}", timeout_s=CALL_S)))
        calls.append(asyncio.create_task(worker.call("set_version", number, timeout_s=CALL_S)))
    await asyncio.gather(*calls)
