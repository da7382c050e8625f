"""Calls: what arrives is what was sent, each reply reaches its own caller, and a late one reaches nobody.

Knows: values, interleavings and deadlines.
Does not know: sockets, what a worker does with a call (`hosted`), or what an engine is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from areal_conformance.benches.scheduler import CALL_S, SchedulerBench, ask, asking
from areal_conformance.benches.scheduler_values import contract_values, difference, plain_values, tensor_values
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CALL
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.errors import ArealError, WorkerTimeout
from areal_core.contract.inference import PauseMode
from areal_core.contract.scheduler import Worker

_AT_ONCE = 40
_BURST = 300
"""Calls that end together; more than any scheduler takes in one turn."""
_BUSY_S = 0.3
_OPEN_S = 5.0


@check("scheduler.calls.values", level=Level.SINGLE, law=1, spec=CALL)
async def values(bench: SchedulerBench) -> None:
    """Plain data and every contract type arrive as they were sent and come back as they arrived."""
    await _come_back(await bench.worker(), {**plain_values(), **contract_values()})


@check("scheduler.calls.tensors", level=Level.SINGLE, law=1, spec=CALL)
async def tensors(bench: SchedulerBench) -> None:
    """Tensors and what holds them arrive with their bits, shape and dtype, large ones and empty ones too."""
    if find_spec("torch") is None:
        raise Inconclusive("torch is not installed here: there are no tensors to send")
    async with bench.scheduler() as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        await _come_back(worker, tensor_values())


_LENGTHS = (1, 2, 100, 65_536, 65_537, 131_072)
"""Of one byte, small, and beyond the sizes from which transports take memory as it is, or cut it."""


@check("scheduler.calls.owned", level=Level.SINGLE, law=1, spec=CALL)
async def owned(bench: SchedulerBench) -> None:
    """A tensor that came is its caller's own: it can be written to, and neither what was sent nor a later reply is."""
    if find_spec("torch") is None:
        raise Inconclusive("torch is not installed here: there are no tensors to send")
    import torch

    async with bench.scheduler() as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        for length in _LENGTHS:
            sent, beside = torch.ones(length, dtype=torch.uint8), torch.full((length,), 5, dtype=torch.uint8)
            replies = [(await ask(worker, "echo", value=[sent, beside]))["value"] for _ in range(2)]
            (first, _), (second, _) = replies
            first.fill_(7)
            replies.append((await ask(worker, "echo", value=[sent, beside]))["value"])
            third, _ = replies[-1]
            second.add_(1)
            whole = {"what was sent": (sent, 1), "the first reply, set to 7": (first, 7)}
            whole |= {"the second, where 1 was added": (second, 2), "the third": (third, 1)}
            whole |= {f"what came behind reply {n}": (other, 5) for n, (_, other) in enumerate(replies, start=1)}
            for name, (tensor, wanted) in whole.items():
                found = sorted(set(tensor.tolist()))
                expect(found == [wanted], f"of {length} bytes, {name}, holds {found[:4]}")


async def _come_back(worker: Worker, values: Mapping[str, Any]) -> None:  # Any: that is the point
    for name, value in values.items():
        found = difference(value, (await ask(worker, "echo", value=value))["value"])
        expect(found is None, f"{name} came back otherwise: {found}")


@check("scheduler.calls.methods", level=Level.SINGLE, law=1, spec=CALL)
async def methods(bench: SchedulerBench) -> None:
    """Every argument of every method reaches the engine, and its own result comes back."""
    worker = await bench.worker()
    for mode in PauseMode:
        result = await worker.call("pause", mode, timeout_s=CALL_S)
        expect(result is None, f"pause returned {result!r}")
        seen = (await ask(worker, "mode"))["paused"]
        expect(seen == repr(mode), f"pause({mode!r}) reached the engine as {seen}")
        expect((await worker.call("status", timeout_s=CALL_S)).paused, "status after pause tells paused=False")
        await worker.call("resume", timeout_s=CALL_S)
        expect(not (await worker.call("status", timeout_s=CALL_S)).paused, "status after resume tells paused=True")
    for version in (3, 2**40):
        await worker.call("commit_weights", version, timeout_s=CALL_S)
        generation = await worker.call("generate", asking("facts", (9, 4, 9)), timeout_s=CALL_S)
        seen_version = generation.version_spans[0].version
        expect(seen_version == version, f"commit_weights({version}) reached the engine as {seen_version}")
        expect(generation.output_ids == (9, 4, 9), f"input ids (9, 4, 9) came back as {generation.output_ids}")


@check("scheduler.calls.at_once", level=Level.SINGLE, law=1, spec=CALL)
async def at_once(bench: SchedulerBench) -> None:
    """Many calls are at work at once, and whatever the order of their ends each caller gets its own reply."""
    worker = await bench.worker()
    waiting = [bench.doing(worker.call("generate", _waiting(n), timeout_s=CALL_S)) for n in range(_AT_ONCE)]
    order = list(range(_AT_ONCE))
    random.Random(5).shuffle(order)
    try:
        for number in order:
            await ask(worker, "open", timeout_s=_OPEN_S, gate=f"gate {number}")
        ends = await bench.soon(asyncio.gather(*waiting), f"{_AT_ONCE} calls whose gates were opened")
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    seen = [(end.output_ids, end.token_extras["gate"]) for end in ends]
    wrong = [number for number in range(_AT_ONCE) if seen[number] != ((number, number), f"gate {number}")]
    expect(not wrong, f"calls {wrong[:5]} got the replies {[seen[number] for number in wrong[:5]]}")


@check("scheduler.calls.burst", level=Level.SINGLE, law=9, spec=CALL)
async def burst(bench: SchedulerBench) -> None:
    """Hundreds of calls that end while the controller is busy for a moment are all answered, though nobody asks more.

    So are hundreds that it makes in one turn of its loop.
    """
    async with bench.scheduler() as scheduler:
        (worker,) = await bench.start(scheduler, bench.job())
        call = asking("wait", gate="all")
        waiting = [bench.doing(worker.call("generate", call, timeout_s=CALL_S)) for _ in range(_BURST)]
        try:
            opened = bench.doing(ask(worker, "open", timeout_s=_OPEN_S, gate="all"))
            await asyncio.sleep(_BUSY_S)  # the request leaves
            time.sleep(_BUSY_S)  # noqa: ASYNC251  the controller is at something else when the answers come
            await bench.soon(asyncio.gather(opened, *waiting), f"{_BURST} calls that ended together")
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


@check("scheduler.calls.two_workers", level=Level.SINGLE, law=1, spec=CALL)
async def two_workers(bench: SchedulerBench) -> None:
    """Calls of two workers at once go each to its own, and none waits for the other worker's."""
    async with bench.scheduler() as scheduler:
        left, right = await bench.start(scheduler, bench.job(num_workers=2))
        stuck = bench.doing(ask(left, "wait", gate="left"))
        pairs = [(worker, number) for number in range(10) for worker in (left, right)]
        facts = await bench.soon(asyncio.gather(*(ask(worker, "facts") for worker, _ in pairs)), "calls")
        pids = {worker.id: status.pid for worker, status in zip((left, right), scheduler.poll("probe"), strict=True)}
        wrong = [w.id for (w, _), fact in zip(pairs, facts, strict=True) if fact["pid"] != pids[w.id]]
        expect(not wrong, f"calls of {wrong} were answered by another worker")
        await ask(left, "open", gate="left")
        expect((await bench.soon(stuck, "the first call"))["gate"] == "left", "the first call got another's reply")


@check("scheduler.calls.deadline", level=Level.SINGLE, law=9, spec=CALL)
async def deadline(bench: SchedulerBench) -> None:
    """A call without an answer raises WorkerTimeout at its own deadline, naming worker and method."""
    worker = await bench.worker()
    work = worker.call("generate", asking("wait", gate="never"), timeout_s=0.2)
    await bench.raised(WorkerTimeout, work, "a call", worker.id, "generate")
    expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use after a timeout")


@check("scheduler.calls.late_reply", level=Level.SINGLE, law=1, spec=CALL)
async def late_reply(bench: SchedulerBench) -> None:
    """A reply that comes after its caller gave up reaches no other caller."""
    worker = await bench.worker()
    for name in ("late one", "late two"):
        await bench.raised(WorkerTimeout, worker.call("generate", asking("deaf", gate=name), timeout_s=0.2), "a call")
    waiting = bench.doing(ask(worker, "wait", gate="after"))
    for name in ("late two", "late one"):
        given = await ask(worker, "open", timeout_s=_OPEN_S, gate=name)
        expect(given == {}, f"another call got the late reply {given}")
    for number in range(5):
        given = await ask(worker, "echo", timeout_s=_OPEN_S, value=number)
        expect(given == {"value": number}, f"echo of {number} got the reply {given}")
    await ask(worker, "open", timeout_s=_OPEN_S, gate="after")
    given = await bench.soon(waiting, "a call whose gate was opened")
    expect(given == {"gate": "after"}, f"a call that was waiting got the reply {given}")


@check("scheduler.calls.cancelled", level=Level.SINGLE, law=9, spec=CALL)
async def cancelled(bench: SchedulerBench) -> None:
    """Cancelling a call, and its deadline, cancel it in the worker too; the others go on."""
    worker = await bench.worker()
    before = (await worker.call("status", timeout_s=CALL_S)).metrics["cancelled"]
    kept = bench.doing(ask(worker, "wait", gate="kept"))
    call = bench.doing(ask(worker, "wait", gate="dropped"))
    await _running(bench, 2)
    call.cancel()
    await bench.soon(asyncio.wait((call,)), "a cancelled call")
    expect(call.cancelled(), "a cancelled call does not end with CancelledError")
    await _running(bench, 1)
    await bench.raised(BaseException, ask(worker, "wait", timeout_s=0.2, gate="dropped"), "a call without an answer")
    await _running(bench, 1)
    await ask(worker, "open", gate="kept")
    expect((await bench.soon(kept, "the other call"))["gate"] == "kept", "the other call got a wrong reply")
    after = (await worker.call("status", timeout_s=CALL_S)).metrics["cancelled"]
    expect(after == before + 2, f"two calls were given up, {after - before:g} were cancelled in the worker")


@check("scheduler.calls.unknown_method", level=Level.SINGLE, law=8, spec=CALL)
async def unknown_method(bench: SchedulerBench) -> None:
    """A method the contract does not have is refused by its name, and the worker goes on."""
    worker = await bench.worker()
    for method in ("no_such_method", "_do", "__class__"):
        await bench.raised(ArealError, worker.call(method, timeout_s=CALL_S), f"a call of {method!r}", method)
    expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use after an unknown method")


def _waiting(number: int) -> object:
    return asking("wait", (number, number), gate=f"gate {number}")


async def _running(bench: SchedulerBench, count: int) -> None:
    """Wait until the engine has so many generate calls at work."""
    worker = await bench.worker()
    deadline = bench.deadline(10.0)
    while (running := (await worker.call("status", timeout_s=CALL_S)).num_running) != count:
        if not deadline.left():
            raise deadline.late(f"{running} calls are at work in the worker, expected {count}")
