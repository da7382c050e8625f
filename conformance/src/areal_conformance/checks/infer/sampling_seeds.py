"""What decides a request's tokens: its seed and nothing else; where `deterministic` is claimed, to the last bit.

Knows: seeds, prior tokens, company, pauses, repetition; that seeds and places are independent of each other.
Does not know: what distribution is drawn from (`sampling`), or which numbers are right (`integrity`).
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import attrs

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import SLOTS
from areal_conformance.oracles.infer_judging import counted, prompts, rest_of, well_formed
from areal_conformance.oracles.sampling import correlation, middle
from areal_conformance.outcome import Violation, expect
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine

NUM_PAIRS = 600
MANY_DEVIATIONS = 7.0
"""Beyond this many standard deviations a correlation of independent draws lies with a chance of 3e-12."""
SEEDED = ("sampling.seed",)
AFRESH = (5, 9, 7)
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#sampling")


async def _ids(bench: InferBench, engine: InferenceEngine, seed: int, *, name: str = "r") -> tuple[int, ...]:
    request = bench.ask(5, 9, 7, name=name, temperature=1.0, seed=seed, max_new_tokens=24)
    return (await engine.generate(request)).output_ids


@rule("infer.sampling.seed", requires=SEEDED)
async def seed(bench: InferBench) -> None:
    """The same request with the same seed gives the same tokens: again, under another id, in any company."""
    async with bench.engine(*SEEDED, max_concurrent=8) as engine:
        wanted = {number: await _ids(bench, engine, number) for number in range(6)}
        again = {number: await _ids(bench, engine, number, name=f"other-{number}") for number in reversed(range(6))}
        beside = prompts(9, seed=4, longest=30)
        lengths = [20 + number for number in range(9)]
        crowd = bench.start(engine, bench.asks(beside, name="c", temperature=0.8, max_new_tokens=lengths, seed=0))
        together = await asyncio.gather(*(_ids(bench, engine, number, name=f"t{number}") for number in range(6)))
        await bench.results(crowd)
    for number in range(6):
        told = f"seed {number} after [5, 9, 7] at temperature 1"
        expect(again[number] == wanted[number], f"{told}: {again[number]} the second time, {wanted[number]} the first")
        expect(together[number] == wanted[number], f"{told}: {together[number]} in company, {wanted[number]} alone")


@rule("infer.sampling.seeds_differ", requires=SEEDED)
async def seeds_differ(bench: InferBench) -> None:
    """Different seeds give different tokens, seeds as large as 2**63 - 1 included: no bit of a seed is dropped."""
    seeds = [0, 1, 2, 3, 2**16, 2**31, 2**31 + 1, 2**32, 2**32 + 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63 - 2]
    async with bench.engine(*SEEDED) as engine:
        outputs = [await _ids(bench, engine, number) for number in seeds]
    first: dict[tuple[int, ...], int] = {}
    for number, output in zip(seeds, outputs, strict=True):
        expect(output not in first, f"seeds {first.get(output)} and {number} give the same 24 tokens {output}")
        first[output] = number


@rule("infer.sampling.seed_continues", spec="infer#continued-requests", requires=(*SEEDED, "sampling.seed_continues"))
async def seed_continues(bench: InferBench) -> None:
    """A request continued from any of its tokens gives the tokens it would have given uninterrupted."""
    async with bench.engine(*SEEDED, "sampling.seed_continues") as engine:
        for number, ids in enumerate(prompts(3, seed=5, longest=12)):
            request = bench.ask(*ids, temperature=1.0, seed=number, max_new_tokens=24)
            whole = (await engine.generate(request)).output_ids
            for cut in (1, 2, 9, 23):
                more = rest_of(request, whole, cut)
                rest = await engine.generate(more)
                well_formed(rest, more)
                told = f"seed {number}: continued after {cut} tokens it gives {rest.output_ids}"
                expect(rest.output_ids == whole[cut:], f"{told}, uninterrupted {whole[cut:]}")


@rule("infer.sampling.continued_afresh", spec="infer#continued-requests", requires=SEEDED, since=(1, 2))
async def continued_afresh(bench: InferBench) -> None:
    """A continued request with a seed does not draw again with the random numbers of its earlier parts."""
    async with bench.engine(*SEEDED, max_concurrent=SLOTS) as engine:
        first = await asyncio.gather(*(_part(bench, engine, seed, ()) for seed in range(NUM_PAIRS)))
        later = await asyncio.gather(*(_part(bench, engine, seed, (token,)) for seed, token in enumerate(first)))
    rows = {
        prior: bench.oracle().logits((*AFRESH, *prior))[-1].log_softmax(-1)
        for prior in {(), *((token,) for token in first)}
    }
    places = [middle(rows[()], token) for token in first]
    after = [middle(rows[prior,], token) for prior, token in zip(first, later, strict=True)]
    deviations = correlation(places, after)
    told = f"the draws of a part and of its continuation are correlated, {deviations:+.1f} standard deviations"
    expect(abs(deviations) < MANY_DEVIATIONS, f"{told}: the seed begins anew")


async def _part(bench: InferBench, engine: InferenceEngine, seed: int, prior: tuple[int, ...]) -> int:
    """Draw one token after prior ones."""
    ids = (*AFRESH, *prior)
    asked: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 1, "seed": seed}
    request = bench.ask(*ids, name=f"{seed}/{len(prior)}", num_prior=len(prior), **asked)
    return (await engine.generate(request)).output_ids[0]


@rule("infer.sampling.unseeded")
async def unseeded(bench: InferBench) -> None:
    """Without a seed every request of a group has draws of its own: equal prompts give different outputs."""
    async with bench.engine() as engine:
        requests = bench.asks(12 * [AFRESH], name="t/0/", temperature=1.0, max_new_tokens=24)
        results = await bench.together(engine, requests)
    distinct = len({result.output_ids for result in results})
    expect(distinct == 12, f"12 requests without a seed for one prompt gave {distinct} different outputs of 24 tokens")


@rule("infer.sampling.replicas_apart")
async def replicas_apart(bench: InferBench) -> None:
    """Engines of other seeds, as replicas and runs have, answer the same requests without a seed by other draws."""
    requests = bench.asks(6 * [AFRESH], name="t/0/", temperature=1.0, max_new_tokens=24)
    outputs = []
    for own in (1, 2, 2**40 + 1):
        async with bench.engine(seed=own) as engine:
            outputs.append([result.output_ids for result in await bench.together(engine, requests)])
    for one, other in itertools.combinations(outputs, 2):
        alike = sum(left == right for left, right in zip(one, other, strict=True))
        told = f"{alike} of 6 requests without a seed have the same output of 24 tokens"
        expect(not alike, f"{told} on engines of different seeds")


@rule("infer.sampling.independent")
async def independent(bench: InferBench) -> None:
    """Draws at different places of an output, and of neighbouring seeds, know nothing of each other."""
    heat = 0.6
    async with bench.engine(max_concurrent=SLOTS) as engine:
        requests = bench.asks(NUM_PAIRS * [AFRESH], temperature=heat, max_new_tokens=3, seed=0)
        results = await asyncio.gather(*(engine.generate(request) for request in requests))
    known: dict[tuple[int, ...], list[float]] = {}
    for result in results:
        if result.output_ids not in known:
            logits = bench.oracle().logits([5, 9, 7, *result.output_ids])[2:-1]
            rows = (logits.double() / heat).log_softmax(-1)
            known[result.output_ids] = [middle(row, token) for row, token in zip(rows, result.output_ids, strict=True)]
    table = [known[result.output_ids] for result in results]
    places = list(zip(*table, strict=True))
    for left, right, step in itertools.product(range(3), range(3), range(3)):
        if step == 0 and left >= right:
            continue
        deviations = correlation(places[left][: NUM_PAIRS - step], places[right][step:])
        where = f"request n and token {right} of request n + {step}" if step else f"and token {right} of a request"
        told = f"the draws of token {left} of {where} are correlated, {deviations:+.1f} standard deviations"
        expect(abs(deviations) < MANY_DEVIATIONS, f"{told}: they share random numbers")


DETERMINISTIC = ("deterministic",)
exactly = partial(check, level=Level.SINGLE, law=3, spec="infer#sampling", requires=DETERMINISTIC)


def _requests(
    bench: InferBench, *, count: int = 6, length: int = 20, claim: str = "sampling.seed"
) -> list[GenerationRequest]:
    """Return requests of different lengths and temperatures, greedy ones without a seed; all where that is no claim."""
    heats = [0.0, 1.0, 0.7] if bench.target.claimed(claim) else 0.0
    lengths = [length + more for more in (0, 7, 14, 21)]
    made = bench.asks(prompts(count, seed=15, longest=70), temperature=heats, max_new_tokens=lengths, seed=0)
    return [_unseeded(request) if request.sampling.temperature == 0 else request for request in made]


def _unseeded(request: GenerationRequest) -> GenerationRequest:
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, seed=None))


def _expect_same(left: Generation, right: Generation, told: str) -> None:
    if left.output_ids == right.output_ids and left.logprobs == right.logprobs:
        return
    pairs = list(zip(left.output_ids, right.output_ids, left.logprobs, right.logprobs, strict=False))
    place = next((n for n, (a, b, p, q) in enumerate(pairs) if a != b or p != q), len(pairs))
    if place == len(pairs):
        raise Violation(f"{told}: {len(left.output_ids)} tokens, {len(right.output_ids)} the other time")
    a, b, p, q = pairs[place]
    raise Violation(f"{told}: token {place} is {a} with log-prob {p!r}, the other time {b} with {q!r}")


@exactly("infer.deterministic.company")
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


@exactly("infer.deterministic.paused", requires=("deterministic", "pause.keep"))
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


@exactly("infer.deterministic.continued")
async def continued(bench: InferBench) -> None:
    """A request continued from any of its tokens gives the bits it would have given uninterrupted."""
    async with bench.engine(*DETERMINISTIC) as engine:
        for request in _requests(bench, count=3, length=40, claim="sampling.seed_continues"):
            whole = await engine.generate(request)
            for cut in (1, 3, 17, 39):
                rest = await counted(bench, engine, rest_of(request, whole.output_ids, cut))
                left = attrs.evolve(whole, output_ids=whole.output_ids[cut:], logprobs=whole.logprobs[cut:])
                _expect_same(left, rest, f"{request.request_id!r} uninterrupted, and continued after {cut} tokens")
