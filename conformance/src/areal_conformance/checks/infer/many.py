"""Many updates: memory and descriptors stay flat, nothing drifts, versions may be far apart.

Knows: what a process and its children hold, before and after.
Does not know: a single update (`updates`).
"""

from __future__ import annotations

import gc
from typing import Any

import psutil

from areal_conformance.benches.infer import InferBench
from areal_conformance.benches.process import pooled_threads
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import expect_policy, prompts, same, teller, true_to_versions, versions_of
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation

UPDATES = 1000
WARM = 150
"""Updates before the first look: allocators and caches have their size by then."""
TINY: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "max_position": 256}
"""Arguments of `make_tiny_model`. Any: each has its own type."""


def _held() -> tuple[int, int, int]:
    """Return resident bytes, descriptors and threads of this process and its children."""
    gc.collect()
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return (
        sum(process.memory_info().rss for process in family),
        sum(process.num_fds() for process in family),
        sum(process.num_threads() for process in family) - pooled_threads(),
    )


@check("infer.many.flat", level=Level.LOOP, law=10, spec="infer#weights", deadline_s=180.0)
async def flat(bench: InferBench) -> None:
    """Over 1,000 updates with requests between them, memory, descriptors and threads stay flat."""
    folder = bench.model(**TINY)
    weights = bench.weights(folder)
    size = sum(tensor.nbytes for tensor in weights.tensors.values())
    async with bench.engine(model=folder, fresh=True) as engine:
        before = _held()
        for number in range(UPDATES):
            await bench.update(engine, weights)
            if number % 10 == 0:
                await bench.generate(engine, bench.ask(5, 9, max_new_tokens=2))
            if number == WARM:
                before = _held()
        after = _held()
    names = ("resident bytes", "descriptors", "threads")
    for name, mine, theirs in zip(names, after, before, strict=True):
        bench.numbers[name] = float(mine - theirs)
    allowed = (UPDATES - WARM) * size // 3
    grown = after[0] - before[0]
    expect(
        grown < allowed,
        f"{UPDATES - WARM} updates of {size} bytes grew the process by {grown} bytes, {grown / (UPDATES - WARM):.0f} "
        f"each: weights of old versions are kept (allowed: {allowed})",
    )
    expect(after[1] <= before[1] + 4, f"{UPDATES - WARM} updates: {before[1]} descriptors became {after[1]}")
    expect(after[2] <= before[2] + 2, f"{UPDATES - WARM} updates: {before[2]} threads became {after[2]}")


@check("infer.many.requests_flat", level=Level.LOOP, law=10, spec="infer#generate", deadline_s=120.0)
async def requests_flat(bench: InferBench) -> None:
    """Over 1,500 requests, a third of them cancelled, descriptors, threads and the counters of status stay flat."""
    folder = bench.model(**TINY)
    async with bench.engine(model=folder, fresh=True, max_concurrent=8) as engine:
        before = _held()
        for number in range(75):
            calls = [bench.call(engine.generate(bench.ask(5, n, max_new_tokens=3))) for n in range(2, 22)]
            await bench.turns(1)
            for call in calls[number % 3 :: 3]:
                call.cancel()
            await bench.ended(calls, "20 requests, a third cancelled, to end")
            if number == 25:
                before = _held()
        after, status = _held(), await engine.status()
    expect(after[1] <= before[1] + 4, f"1,000 requests: {before[1]} descriptors became {after[1]}")
    expect(after[2] <= before[2] + 2, f"1,000 requests: {before[2]} threads became {after[2]}")
    grown = after[0] - before[0]
    expect(grown < 32 << 20, f"1,000 requests of 3 tokens grew the process by {grown} bytes")
    expect((status.num_running, status.num_waiting) == (0, 0), f"nothing is asked for any more, status shows {status}")


@check("infer.many.no_drift", level=Level.LOOP, law=7, spec="infer#weights")
async def no_drift(bench: InferBench) -> None:
    """The same weights sent fifty times compute the same as the first time: nothing accumulates."""
    requests = bench.asks(prompts(4), max_new_tokens=12)
    async with bench.engine() as engine:
        first: list[Generation] = []
        for number in range(50):
            await bench.update(engine, bench.weights())
            if number % 7:
                continue
            results = [await bench.generate(engine, request) for request in requests]
            first = first or results
            for request, result, old in zip(requests, results, first, strict=True):
                expect_policy(bench, result, request)
                told = f"{request.request_id!r} after {number + 1} updates of equal bytes: {result}, first it was {old}"
                expect(same(bench, result, old), told)


@check("infer.many.far_apart", level=Level.LOOP, law=7, spec="infer#weights")
async def far_apart(bench: InferBench) -> None:
    """Versions may be far apart: stamps, status and receipts carry numbers up to two thousand million."""
    async with bench.engine(fresh=True) as engine:
        for version in (1, 300, 70_000, 20_000_000, 2_000_000_000):
            await bench.take(engine, teller(bench, version).offer(version), version)
            request = bench.ask(5, 9)
            result = await bench.generate(engine, request)
            true_to_versions(result, request)
            seen = {*versions_of(result), await bench.serving(engine)}
            expect(seen == {version}, f"version {version} was committed; output and status say {sorted(seen)}")
