"""Deterministic engines: the same bits for the same request, whatever else happens.

Knows: company, pauses, continuations, repetition.
Does not know: which numbers are right (`integrity`, `sampling`).
"""

from __future__ import annotations

import asyncio
from functools import partial

import attrs

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import prompts, rest_of, well_formed
from areal_conformance.outcome import Violation
from areal_core.contract.inference import Generation, GenerationRequest

DETERMINISTIC = ("deterministic",)
rule = partial(check, level=Level.SINGLE, law=3, spec="infer#sampling", requires=DETERMINISTIC)


def _requests(
    bench: InferBench, *, count: int = 6, length: int = 20, claim: str = "sampling.seed"
) -> list[GenerationRequest]:
    """Return requests of different lengths and temperatures; seeded, or greedy where that is not claimed."""
    heats = [0.0, 1.0, 0.7] if bench.target.claimed(claim) else 0.0
    lengths = [length + more for more in (0, 7, 14, 21)]
    return bench.asks(prompts(count, seed=15, longest=70), temperature=heats, max_new_tokens=lengths, seed=0)


def _expect_same(left: Generation, right: Generation, told: str) -> None:
    if left.output_ids == right.output_ids and left.logprobs == right.logprobs:
        return
    pairs = list(zip(left.output_ids, right.output_ids, left.logprobs, right.logprobs, strict=False))
    place = next((n for n, (a, b, p, q) in enumerate(pairs) if a != b or p != q), len(pairs))
    if place == len(pairs):
        raise Violation(f"{told}: {len(left.output_ids)} tokens, {len(right.output_ids)} the other time")
    a, b, p, q = pairs[place]
    raise Violation(f"{told}: token {place} is {a} with log-prob {p!r}, the other time {b} with {q!r}")


@rule("infer.deterministic.company")
async def company(bench: InferBench) -> None:
    """Tokens and log-probs are the same bits alone, again, together, in other orders, and in a changing crowd."""
    async with bench.engine(*DETERMINISTIC) as engine:
        requests = _requests(bench)
        alone = [await engine.generate(request) for request in requests]
        again = [await engine.generate(request) for request in reversed(requests)][::-1]
        together = await asyncio.gather(*(engine.generate(request) for request in requests))
        lengths, beside = [3 + 5 * number for number in range(7)], prompts(7, seed=16, longest=90)
        crowd = bench.start(engine, bench.asks(beside, name="c", temperature=0.9, max_new_tokens=lengths))
        crowded = (await asyncio.gather(*(engine.generate(request) for request in reversed(requests))))[::-1]
        await bench.results(crowd)
    for number, request in enumerate(requests):
        well_formed(alone[number], request)
        told = f"request {number}, prompt of {len(request.input_ids)} tokens"
        _expect_same(alone[number], again[number], f"{told}, alone twice")
        _expect_same(alone[number], together[number], f"{told}, alone and with {len(requests) - 1} others")
        _expect_same(alone[number], crowded[number], f"{told}, alone and in a crowd of strangers")


@rule("infer.deterministic.paused", requires=("deterministic", "pause.keep"))
async def paused(bench: InferBench) -> None:
    """A pause changes no bit of what is frozen by it."""
    async with bench.engine("deterministic", "pause.keep") as engine:
        requests = _requests(bench, count=4, length=60)
        alone = [await engine.generate(request) for request in requests]
        calls = bench.start(engine, requests)
        await bench.freeze(engine, times=3, after=9)
        results = await bench.results(calls)
    for number, (left, right) in enumerate(zip(alone, results, strict=True)):
        _expect_same(left, right, f"request {number}, undisturbed and paused three times")


@rule("infer.deterministic.continued")
async def continued(bench: InferBench) -> None:
    """A request continued from any of its tokens gives the bits it would have given uninterrupted."""
    async with bench.engine(*DETERMINISTIC) as engine:
        for request in _requests(bench, count=3, length=40, claim="sampling.seed_continues"):
            whole = await engine.generate(request)
            for cut in (1, 3, 17, 39):
                rest = await engine.generate(rest_of(request, whole.output_ids, cut))
                left = attrs.evolve(whole, output_ids=whole.output_ids[cut:], logprobs=whole.logprobs[cut:])
                _expect_same(left, rest, f"{request.request_id!r} uninterrupted, and continued after {cut} tokens")
