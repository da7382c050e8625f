"""Many requests at once: each gets its own output, nobody waits for ever, the counters are true.

Knows: joining, leaving and queueing.
Does not know: updates and pauses.
"""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.timings import CLOCKS_S
from areal_conformance.oracles.infer_judging import expect_policies, prompts
from areal_conformance.outcome import expect
from areal_core.contract.inference import (
    FLEET_METRICS,
    KV_USED_SHARE,
    NUM_PREEMPTED,
    PREFIX_HIT_SHARE,
    InferenceEngine,
)


@check("infer.concurrent.alone", level=Level.SINGLE, law=1, spec="infer#generate")
async def alone(bench: InferBench) -> None:
    """Requests that run together get what each would get alone: no output crosses, whatever joins and leaves."""
    async with bench.engine(max_concurrent=8) as engine:
        lengths = [3 + (11 * number) % 37 for number in range(24)]
        requests = bench.asks(prompts(24, seed=5), temperature=[0.0, 1.0, 0.8], max_new_tokens=lengths)
        calls = []
        for number, request in enumerate(requests):
            calls.append(bench.call(engine.generate(request)))
            if number % 5 == 4:
                await bench.until_generated(engine, 8)
        results = await bench.results(calls)
    for result, request in zip(results, requests, strict=True):
        got, wanted = len(result.output_ids), request.sampling.max_new_tokens
        expect(got == wanted, f"{request.request_id!r} asked for {wanted} tokens and got {got}")
    expect_policies(bench, zip(results, requests, strict=True))


@check("infer.concurrent.crowd", level=Level.SINGLE, law=1, spec="infer#generate")
async def crowd(bench: InferBench) -> None:
    """Two hundred requests at once, of more than a hundred that run together, each get their own output."""
    async with bench.engine(max_concurrent=144) as engine:
        requests = bench.asks(prompts(200, seed=8), temperature=[0.0, 1.0], max_new_tokens=[2, 3, 4, 5, 6])
        results = await bench.together(engine, requests)
    expect_policies(bench, zip(results, requests, strict=True))


@check("infer.concurrent.shared_prompts", level=Level.SINGLE, law=1, spec="infer#generate")
async def shared_prompts(bench: InferBench) -> None:
    """Requests with one prompt, or one the beginning of another, each get the output of their own prompt."""
    long = tuple(2 + (5 * place) % 61 for place in range(40))
    asked = [long, long, long[:20], long[:39], (*long, 7), (*long[:39], 50), long, (*long[:20], 9, 9)]
    groups = [(*ids, last) for ids in (long, long[:11], long[5:8]) for last in (7, 50, 31, 7)]
    async with bench.engine(max_concurrent=len(groups)) as engine:
        requests = bench.asks(asked, temperature=[0.0, 1.0], max_new_tokens=lambda number: 12 + number)
        requests += bench.asks(groups, name="group", temperature=1.0, max_new_tokens=6)
        together = [*await bench.together(engine, requests[:8]), *await bench.together(engine, requests[8:])]
        after = [await bench.generate(engine, request) for request in requests]
    expect_policies(bench, zip([*together, *after], [*requests, *requests], strict=True))


@check("infer.concurrent.more_than_slots", level=Level.SINGLE, law=9, spec="infer#generate")
async def more_than_slots(bench: InferBench) -> None:
    """More requests than `max_concurrent` all finish, and never more than that run at once."""
    async with bench.engine(max_concurrent=3) as engine:
        requests = [bench.ask(*ids, name=f"r{n}", max_new_tokens=4 + n) for n, ids in enumerate(prompts(14, seed=6))]
        calls = bench.start(engine, requests)
        most = waited = 0

        async def done() -> bool:
            nonlocal most, waited
            status = await engine.status()
            most, waited = max(most, status.num_running), max(waited, status.num_waiting)
            return all(call.done() for call in calls)

        await bench.until(done, "14 requests with max_concurrent 3 to finish")
        expect(1 <= most <= 3, f"max_concurrent is 3, status showed up to {most} running")
        expect(waited > 0, "14 requests with max_concurrent 3, yet status never showed one waiting")
        expect_policies(bench, zip([call.result() for call in calls], requests, strict=True))


@check("infer.concurrent.no_starvation", level=Level.SINGLE, law=9, spec="infer#generate")
async def no_starvation(bench: InferBench) -> None:
    """A waiting request is served in its turn, however many come after it."""
    async with bench.engine(max_concurrent=1) as engine:
        first = bench.call(engine.generate(bench.ask(5, 9, name="first", max_new_tokens=LONG)))
        await bench.until_generated(engine, 1)
        patient = bench.call(engine.generate(bench.ask(*range(2, 30), name="patient", max_new_tokens=300)))
        overtaken: list[int] = []

        async def hurry(number: int) -> None:
            await engine.generate(bench.ask(5, name=f"hurry-{number}", max_new_tokens=1))
            if not patient.done():
                overtaken.append(number)

        await bench.turns(4)
        hurried = [bench.call(hurry(number)) for number in range(12)]
        await bench.turns(4)
        first.cancel()
        await bench.ended([first, patient, *hurried], "a queue of 13 requests to be served")
        expect(len(overtaken) <= 3, f"{len(overtaken)} of 12 requests that came later were served before a waiting one")


@check("infer.concurrent.same_name", level=Level.SINGLE, law=1, spec="infer#generate")
async def same_name(bench: InferBench) -> None:
    """Requests that share an id are still different requests: each caller gets its own prompt's output."""
    async with bench.engine() as engine:
        requests = [bench.ask(*ids, name="one-name", max_new_tokens=6 + n) for n, ids in enumerate(prompts(5, seed=7))]
        results = await bench.together(engine, requests)
        again = [await bench.generate(engine, request) for request in reversed(requests)]
    for result, request in zip([*results, *reversed(again)], [*requests, *requests], strict=True):
        got, wanted = len(result.output_ids), request.sampling.max_new_tokens
        expect(got == wanted, f"a request for {wanted} tokens got {got}: another one's?")
        expect_policies(bench, [(result, request)])


@check("infer.status.counts", level=Level.SINGLE, law=0, spec="infer#status")
async def counts(bench: InferBench) -> None:
    """`status` counts tokens, running and waiting requests as they are; its busy time grows with work alone."""
    async with bench.engine(max_concurrent=2) as engine:
        before = await engine.status()
        calls = [bench.call(engine.generate(bench.ask(5, n, max_new_tokens=4000))) for n in (3, 4, 5, 6, 7)]
        await bench.until_generated(engine, 20)
        await bench.until_shown(engine, 2, 3, "of 5 requests with max_concurrent 2")
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await bench.until_shown(engine, 0, 0, "after every request was cancelled")
        await bench.until(partial(_rests, bench, engine), "busy_s to stand still at rest", seconds=1.0)
        await bench.turns(800)  # a rest that is not to be found in the time of what comes next
        began, start = time.monotonic(), await engine.status()
        results = await bench.together(engine, [bench.ask(5, n, max_new_tokens=9) for n in (3, 4, 5, 6)])
        end, took = await engine.status(), time.monotonic() - began
    made, counted = sum(len(result.output_ids) for result in results), end.tokens_generated - start.tokens_generated
    expect(made == counted, f"{made} tokens came out of 4 requests, tokens_generated grew by {counted}")
    busy = [status.busy_s for status in (before, start, end)]
    expect(busy == sorted(busy) and 0 <= busy[0] < busy[2], f"busy_s must grow with work, got {busy}")
    grown = busy[2] - busy[1]
    expect(grown <= took + CLOCKS_S, f"4 requests took {took:.4f} s after a rest, busy_s grew by {grown:.4f}")


async def _rests(bench: InferBench, engine: InferenceEngine) -> bool:
    """Tell whether no time is counted as busy over some turns of the event loop."""
    before = (await engine.status()).busy_s
    await bench.turns(20)
    return (await engine.status()).busy_s == before


@check("infer.status.metrics", level=Level.SINGLE, law=0, spec="infer#metrics", since=(1, 2))
async def metrics(bench: InferBench) -> None:
    """Metrics are finite numbers; shares lie in [0, 1] and counts never go back, busy or at rest."""
    async with bench.engine() as engine:
        seen = [(await engine.status()).metrics]
        for part in range(3):
            shared = [(*range(5, 45), last) for last in (5, 6, 7, 5, 6, 7)]
            calls = bench.start(engine, bench.asks(shared, name=f"{part}/", max_new_tokens=40))
            await bench.until_generated(engine, 30)
            seen.append((await engine.status()).metrics)
            await bench.results(calls)
            seen.append((await engine.status()).metrics)
    for told in seen:
        wrong = {name: value for name, value in told.items() if not math.isfinite(value)}
        expect(not wrong, f"metrics must be finite numbers, got {wrong}")
        for name in (KV_USED_SHARE, PREFIX_HIT_SHARE):
            expect(0 <= told.get(name, 0) <= 1, f"{name} is a share in [0, 1], got {told.get(name)}")
    counts = [told.get(NUM_PREEMPTED, 0) for told in seen]
    expect(counts == sorted(counts) and counts[0] >= 0, f"{NUM_PREEMPTED} counts since start, got {counts} in a row")
    bench.notes.append(f"told: {', '.join(name for name in FLEET_METRICS if name in seen[-1]) or 'none'}")
