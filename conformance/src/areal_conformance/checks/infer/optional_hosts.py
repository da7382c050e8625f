"""One replica over several hosts: parts that are one engine, or none at all.

Knows: how parts are started on this machine, each as if it had a host of its own.
Does not know: how parts meet, or what becomes of a worker whose part is lost (the core's own tests).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.optional_parallel import CLAIMS, layouts_of
from areal_conformance.oracles.infer_judging import expect_answered, expect_policy, prompts, raises
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, CapabilityError, GenerationFailed
from areal_core.contract.inference import GenerationRequest, InferenceEngine, InferenceSpec, PauseMode, ReplicaPart
from areal_core.contract.weights import Receipt
from areal_core.weights.tensors import fingerprint
from areal_core.worker.rendezvous import init_method
from areal_torch.testing.serving import FolderWeights

HOSTS = ("parallel.tensor", "replica.hosts")
STAGES = ("parallel.pipeline", "replica.hosts")
HERE = "127.0.0.1"
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#hosts", requires=HOSTS, since=(1, 4))


def _specs(bench: InferBench, axis: str = "t") -> list[InferenceSpec]:
    """Return what each part is started with: as many parts as the adapter's first layout along an axis has ranks."""
    layout = layouts_of(bench, axis)[0]
    count = math.prod(layout.values())
    first = ReplicaPart(rank=0, num_hosts=count, host=HERE, leader=init_method(HERE), key="of this replica")
    parts = [ReplicaPart(rank=n, num_hosts=count, host=HERE, leader=first.leader, key=first.key) for n in range(count)]
    return [bench.spec(CLAIMS[axis], "replica.hosts", layout=layout, part=part) for part in parts]


@contextlib.asynccontextmanager
async def _replica(bench: InferBench, axis: str = "t") -> AsyncIterator[list[InferenceEngine]]:
    """Give the parts of one started replica, the leader first."""
    specs = _specs(bench, axis)
    parts = [bench.new(CLAIMS[axis], "replica.hosts") for _ in specs]
    await asyncio.gather(*(part.start(spec) for part, spec in zip(parts, specs, strict=True)))
    yield parts
    for part in parts:
        await part.close()


async def _everywhere(bench: InferBench, calls: Sequence[Coroutine[Any, Any, Receipt]]) -> list[Receipt]:
    """Await a call to every part at once; Violation if one hangs. Any: asyncio's own."""
    tasks = [bench.call(call) for call in calls]
    await bench.until(lambda: all(task.done() for task in tasks), "receive_weights of every part to return")
    return [task.result() for task in tasks]


async def _update(bench: InferBench, parts: Sequence[InferenceEngine], sent: FolderWeights) -> None:
    """Bring new weights to every part as the core does, and expect each to prove the bytes that were sent."""
    leader, *others = parts
    version, mode = await bench.serving(leader) + 1, bench.settling()
    early = not bench.target.claimed("weights.staged")
    if mode is not None and early:
        await leader.pause(mode)
    receipts = await _everywhere(bench, [part.receive_weights(sent.offer(version), version) for part in parts])
    if mode is not None and not early:
        await leader.pause(mode)
    await leader.commit_weights(version)
    for part in others:
        await part.commit_weights(version)
    if mode is not None:
        await leader.resume()
    for rank, (part, receipt) in enumerate(zip(parts, receipts, strict=True)):
        wrong = [name for name, tensor in sent.tensors.items() if receipt.fingerprints.get(name) != fingerprint(tensor)]
        expect(not wrong, f"the receipt of part {rank} is not of the bytes that were sent: {wrong[:3]}")
        expect(await bench.serving(part) == version, f"{version} was committed, part {rank} shows another version")


def _requests(bench: InferBench) -> list[GenerationRequest]:
    lengths = [8 + number for number in range(4)]
    return bench.asks(prompts(4, seed=61, longest=30), temperature=[0.0, 1.0], max_new_tokens=lengths)


@rule("infer.hosts.update", law=7)
async def update(bench: InferBench) -> None:
    """Parts on several hosts generate what the whole model does, before and after updates that reach each of them."""
    await _updated(bench, "t")


@rule("infer.hosts.stages", law=7, requires=STAGES, since=(1, 5))
async def stages(bench: InferBench) -> None:
    """Stages of a pipeline on several hosts generate what the whole model does, before and after updates."""
    await _updated(bench, "p")


async def _updated(bench: InferBench, axis: str) -> None:
    async with _replica(bench, axis) as parts:
        requests = _requests(bench)
        results = await bench.together(parts[0], requests)
        for request, result in zip(requests, results, strict=True):
            expect_policy(bench, result, request, told=f"{len(parts)} parts: request {request.request_id!r}")
        for seed in (5, 6):
            weights = bench.weights(bench.model(seed=seed))
            await _update(bench, parts, weights)
            for request in _requests(bench):
                told = f"{request.request_id!r} of {len(parts)} parts after an update to the weights of seed {seed}"
                await expect_answered(bench, parts[0], request, weights=weights, told=told)


@rule("infer.hosts.held", law=7)
async def held(bench: InferBench) -> None:
    """The leader has a version only once the others do; a transfer that does not reach them ends by an abort."""
    base, weights = bench.weights(), bench.weights(bench.model(seed=5))
    async with _replica(bench) as parts:
        leader = parts[0]
        async with bench.receiving(leader):
            alone = bench.call(leader.receive_weights(weights.offer(1), 1))
            await bench.turns(400)
            expect(not alone.done(), "the leader's receive_weights returned, and no other part has the version")
            for part in parts:
                await part.abort_weights()
            (outcome,) = await bench.ended([alone], "receive_weights of a leader that was aborted")
            expect(isinstance(outcome, ArealError), f"an aborted transfer must say so, returned {outcome!r:.200}")
        await expect_answered(bench, leader, bench.ask(5, 9, 7), weights=base, told="after an aborted transfer")
        await _update(bench, parts, weights)
        await expect_answered(bench, leader, bench.ask(5, 9, 7), weights=weights, told="after the next update")


@rule("infer.hosts.refuses", law=8)
async def refuses(bench: InferBench) -> None:
    """Parts that do not lead take no requests, and are at rest while the leader answers them."""
    async with _replica(bench) as parts:
        leader, *others = parts
        await bench.generate(leader, bench.ask(5, 9, 7))
        for rank, part in enumerate(others, start=1):
            await raises(CapabilityError, partial(part.generate, bench.ask(5, 9)), f"generate of part {rank}")
            await raises(CapabilityError, partial(part.pause, PauseMode(bench.resting)), f"pause of part {rank}")
            status = await part.status()
            expect(
                (status.num_running, status.num_waiting, status.tokens_generated) == (0, 0, 0),
                f"requests are counted by the leader, part {rank} shows {status}",
            )


@rule("infer.hosts.lost", law=9, level=Level.FAULTS)
async def lost(bench: InferBench) -> None:
    """A part that is gone ends the replica: requests in flight and later ones fail, the leader's status says so."""
    async with _replica(bench) as parts:
        leader, *others = parts
        running = bench.call(leader.generate(bench.ask(5, 9, max_new_tokens=LONG)))
        await bench.until_generated(leader, 3)
        await others[-1].close()
        later = bench.call(leader.generate(bench.ask(5, name="later")))
        for call in (later, running):
            (outcome,) = await bench.ended([call], "a request to a replica that lost a part")
            failed = isinstance(outcome, GenerationFailed)
            expect(failed, f"a request to a replica that lost a part must get GenerationFailed, got {outcome!r:.200}")
        await bench.until(lambda: _fails(leader), "the leader's status to say that a part is lost")


@rule("infer.hosts.closed_alone", law=10, level=Level.FAULTS)
async def closed_alone(bench: InferBench) -> None:
    """A leader that waits for parts that never come can be closed: its start ends, and nobody listens where it did."""
    spec = _specs(bench)[0]
    leader = bench.new(*HOSTS)
    starting = bench.call(leader.start(spec))
    await bench.turns(400)
    expect(not starting.done(), "a leader is ready although the other parts never came")
    closing = bench.call(leader.close())
    started, closed = await bench.ended([starting, closing], "start and close of a leader that waits for others")
    expect(isinstance(started, Exception), f"a start that was closed must fail, returned {started!r:.200}")
    expect(closed is None, f"close must return, raised {closed!r}")
    assert spec.part is not None
    address = urlsplit(spec.part.leader)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken = probe.connect_ex((str(address.hostname), int(address.port or 0))) == 0
    expect(not taken, f"somebody still listens at {spec.part.leader} after close")


async def _fails(engine: InferenceEngine) -> bool:
    try:
        await engine.status()
    except GenerationFailed:
        return True
    return False
