"""Prefix caches: what is kept of a prompt serves the same prompt under the same weights, and nothing else.

Knows: prompts that share beginnings, weights that change in between.
Does not know: how much is kept, or how.
"""

from __future__ import annotations

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import draw
from areal_conformance.oracles.infer_judging import expect_policies, expect_policy, prompts
from areal_conformance.outcome import expect
from areal_torch.testing.serving import FolderWeights

PREFIX = ("prefix_cache",)
LONG = tuple(2 + (7 * place) % 61 for place in range(48))


@check("infer.prefix_cache.cross_talk", level=Level.SINGLE, law=1, spec="infer#prefix-cache", requires=PREFIX)
async def cross_talk(bench: InferBench) -> None:
    """Prompts that share a beginning of any length get each their own output, in any order, again and again."""
    cuts = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48)
    shared = [(*LONG[:cut], *tail) for cut in cuts for tail in ((40, 41), (40, 42), (41, 40))]
    shared += [LONG, LONG[:-1], LONG[1:], (*LONG[1:], LONG[0]), LONG[::-1]]
    shared += [(*LONG[:place], 63, *LONG[place + 1 :]) for place in (0, 1, 16, 30, 46, 47)]
    async with bench.engine(*PREFIX) as engine:
        for turn in (shared, shared[::-1]):
            requests = [bench.ask(*ids, name=f"r{n}", max_new_tokens=3) for n, ids in enumerate(turn)]
            expect_policies(bench, [(await engine.generate(request), request) for request in requests])
        calls = [bench.call(engine.generate(request)) for request in requests]
        expect_policies(bench, zip(await bench.results(calls), requests, strict=True))


@check("infer.prefix_cache.follows_updates", level=Level.SINGLE, law=7, spec="infer#prefix-cache", requires=PREFIX)
async def follows_updates(bench: InferBench) -> None:
    """After an update nothing kept under the old weights serves a new request, also when they come back."""
    other, third = (FolderWeights.of(bench.model(seed=seed)) for seed in (21, 22))
    asked = [LONG, LONG[:16], *prompts(3, seed=17)]
    async with bench.engine(*PREFIX) as engine:
        for weights in (bench.weights(), other, third, bench.weights(), other):
            await bench.update(engine, weights)
            for again in range(2):
                for number, ids in enumerate(asked):
                    request = bench.ask(*ids, name=f"r{number}", max_new_tokens=3)
                    result = await engine.generate(request)
                    told = f"prompt {number} asked {('first', 'again')[again]} after an update"
                    expect_policy(bench, result, request, weights=weights, told=told)


@check(
    "infer.prefix_cache.update_in_flight",
    level=Level.SINGLE,
    law=7,
    spec="infer#prefix-cache",
    requires=("prefix_cache", "weights.in_flight"),
)
async def update_in_flight(bench: InferBench) -> None:
    """What a request that lived through an update leaves behind serves no new request of the same tokens."""
    other = FolderWeights.of(bench.model(seed=21))
    async with bench.engine("prefix_cache", "weights.in_flight") as engine:
        long = bench.ask(*LONG, name="long", max_new_tokens=140)
        call = bench.call(engine.generate(long))
        await bench.until_generated(engine, 5)
        await bench.update(engine, other)
        made = (await bench.results([call]))[0]
        for count in (0, 1, 4, 16, 40, 120):
            request = bench.ask(*LONG, *made.output_ids[:count], name=f"after-{count}", max_new_tokens=4)
            told = f"a new prompt of the tokens of a request that lived through an update, {count} of its output"
            expect_policy(bench, await engine.generate(request), request, weights=other, told=told)


@check("infer.prefix_cache.not_the_output", level=Level.SINGLE, law=1, spec="infer#prefix-cache", requires=PREFIX)
async def not_the_output(bench: InferBench) -> None:
    """A prompt asked again is drawn anew, at its own temperature: prompts are kept, outputs are not."""
    async with bench.engine(*PREFIX) as engine:
        results = []
        for number in range(6):
            heat = (1.0, 0.5)[number % 2]
            request = bench.ask(*LONG, name=f"t{number}", temperature=heat, max_new_tokens=16, **draw(bench, number))
            results.append(await engine.generate(request))
            expect_policy(bench, results[-1], request)
    distinct = len({result.output_ids for result in results})
    expect(distinct == 6, f"one prompt asked 6 times with draws of its own gave {distinct} different outputs")
