"""Cached keys and values: across an update kept or made anew as claimed; across requests those of the same prompt only.

Knows: the truth of both, computed by hand (`benches.infer_truth`); prompts that share beginnings.
Does not know: how an engine caches, or how much.
"""

from __future__ import annotations

import asyncio
from functools import partial

import torch
from torch import Tensor

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.benches.infer_truth import Segment
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.versions import harvest
from areal_conformance.oracles.infer_judging import (
    expect_answered,
    expect_logprobs,
    expect_policies,
    expect_policy,
    gap,
    prompts,
    well_formed,
)
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, PauseMode
from areal_torch.testing.serving import FolderWeights

KEPT = "weights.kv_kept"
RECOMPUTED = "weights.kv_recomputed"
"""Key of an adapter's options that switch from keeping to recomputing, for engines that can do both."""
TOKENS = 150
Tensors = dict[int, dict[str, Tensor]]
"""The tensors of each version."""


async def _through_updates(
    bench: InferBench, engine: InferenceEngine
) -> tuple[list[GenerationRequest], list[Generation], Tensors]:
    """Run requests through two updates, while a pause holds them for the second where that is claimed.

    Return them, their outputs, and the tensors of each version.
    """
    first = await bench.serving(engine)
    tensors = {first: bench.weights().tensors}
    asked = lasting = LONG if bench.target.claimed("pause.abort") else 4 * TOKENS
    requests = bench.asks(prompts(3, seed=4, longest=12), temperature=1.0, max_new_tokens=asked)
    calls = bench.start(engine, requests)
    for seed in (5, 6):
        await bench.until_generated(engine, 60)
        weights = bench.weights(bench.model(seed=seed))
        if frozen := seed == 6 and bench.target.claimed("pause.keep"):
            await engine.pause(PauseMode.KEEP)
        tensors[await bench.update(engine, weights)] = weights.tensors
        if frozen:
            await engine.resume()
    await bench.until_generated(engine, 60)
    results = await harvest(bench, engine, calls)
    if all(len(result.version_spans) < 2 for result in results):
        raise Inconclusive(f"requests of {lasting} tokens ended before the first update")
    return requests, results, tensors


def _kept(bench: InferBench, request: GenerationRequest, result: Generation, tensors: Tensors) -> Tensor:
    segments = [Segment(span.start, span.stop, tensors[span.version]) for span in result.version_spans]
    return bench.oracle().kept(request.input_ids, result.output_ids, segments)


def _anew(bench: InferBench, request: GenerationRequest, result: Generation, tensors: Tensors) -> Tensor:
    parts = []
    for span in result.version_spans:
        whole = bench.oracle().logprobs(request.input_ids, result.output_ids, weights=tensors[span.version])
        parts.append(whole[span.start : span.stop])
    return torch.cat(parts)


@check("infer.cache.kept", level=Level.SINGLE, law=7, spec="infer#weights", requires=(KEPT, "weights.in_flight"))
async def kept(bench: InferBench) -> None:
    """After an update, running requests go on from the entries the old weights made, and new ones come from the new."""
    async with bench.engine(KEPT) as engine:
        requests, results, tensors = await _through_updates(bench, engine)
    for request, result in zip(requests, results, strict=True):
        well_formed(result, request)
        told = f"{request.request_id!r}, cache kept, versions {[span.version for span in result.version_spans]}"
        expect_logprobs(bench, result, _kept(bench, request, result, tensors), told)


@check("infer.cache.recomputed", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.in_flight",))
async def recomputed(bench: InferBench) -> None:
    """A cache that is not kept is made anew: tokens after an update are those of the new weights alone."""
    claims: tuple[str, ...] = ()
    if bench.target.claimed(KEPT):
        if RECOMPUTED not in bench.target.adapter.options:
            bench.notes.append(f"the cache is always kept: the adapter has no options {RECOMPUTED!r}")
            return
        claims = (RECOMPUTED,)
    async with bench.engine(*claims) as engine:
        requests, results, tensors = await _through_updates(bench, engine)
    for request, result in zip(requests, results, strict=True):
        well_formed(result, request)
        told = f"{request.request_id!r}, cache made anew, versions {[span.version for span in result.version_spans]}"
        truth = _anew(bench, request, result, tensors)
        try:
            expect_logprobs(bench, result, truth, told)
        except Violation as violation:
            stale = gap(result, _kept(bench, request, result, tensors))
            raise Violation(f"{violation}; with the old entries kept the gap would be {stale:.6f}") from None


@check("infer.cache.new_requests", level=Level.SINGLE, law=7, spec="infer#weights")
async def new_requests(bench: InferBench) -> None:
    """A new request never attends to entries of older weights, though its prompt is running, done or half shared."""
    ids = tuple(2 + (11 * place) % 61 for place in range(48))
    asked = [ids, ids[:24], (*ids[:24], 9, 9, 9), ids[:47]]
    in_flight = bench.target.claimed("weights.in_flight")
    async with bench.engine() as engine:
        requests = bench.asks(asked, temperature=[0.0, 1.0], max_new_tokens=6)
        for seed in (5, 6, 0):
            running = []
            if in_flight:
                running = [bench.call(engine.generate(bench.ask(*ids, name="running", max_new_tokens=LONG)))]
            await bench.together(engine, requests)
            weights = bench.weights(bench.model(seed=seed))
            await bench.update(engine, weights)
            results = await bench.together(engine, requests)
            for call in running:
                call.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for result, request in zip(results, requests, strict=True):
                told = f"{request.request_id!r}, whose prompt older weights had cached"
                expect_policy(bench, result, request, weights=weights, told=told)


@check("infer.cache.waiting_requests", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.in_flight",))
async def waiting_requests(bench: InferBench) -> None:
    """A request that waited for a slot through an update is computed by the new weights from its first prompt token."""
    async with bench.engine(max_concurrent=1) as engine:
        shared = tuple(range(2, 34))
        running = bench.call(engine.generate(bench.ask(*shared, name="running", max_new_tokens=LONG)))
        await bench.until_generated(engine, 2)
        requests = [bench.ask(*shared, n, name=f"waiting-{n}", temperature=1.0, max_new_tokens=7) for n in (3, 4)]
        calls = bench.start(engine, requests)
        await bench.until_generated(engine, 5)
        weights = bench.weights(bench.model(seed=5))
        await bench.update(engine, weights)
        running.cancel()
        for result, request in zip(await bench.results(calls), requests, strict=True):
            expect_policy(bench, result, request, weights=weights, told=f"{request.request_id!r}")


PREFIX = ("prefix_cache",)
rule = partial(check, level=Level.SINGLE, spec="infer#prefix-cache", requires=PREFIX)
PROMPT = tuple(2 + (7 * place) % 61 for place in range(48))


@rule("infer.prefix_cache.cross_talk", law=1)
async def cross_talk(bench: InferBench) -> None:
    """Prompts that share a beginning of any length get each their own output, in any order, again and again."""
    cuts = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48)
    shared = [(*PROMPT[:cut], *tail) for cut in cuts for tail in ((40, 41), (40, 42), (41, 40))]
    shared += [PROMPT, PROMPT[:-1], PROMPT[1:], (*PROMPT[1:], PROMPT[0]), PROMPT[::-1]]
    shared += [(*PROMPT[:place], 63, *PROMPT[place + 1 :]) for place in (0, 1, 16, 30, 46, 47)]
    async with bench.engine(*PREFIX) as engine:
        for turn in (shared, shared[::-1]):
            requests = bench.asks(turn, max_new_tokens=3)
            expect_policies(bench, [(await engine.generate(request), request) for request in requests])
        expect_policies(bench, zip(await bench.together(engine, requests), requests, strict=True))


@rule("infer.prefix_cache.follows_updates", law=7)
async def follows_updates(bench: InferBench) -> None:
    """After an update nothing kept under the old weights serves a new request, also when they come back."""
    other, third = (FolderWeights.of(bench.model(seed=seed)) for seed in (21, 22))
    asked = [PROMPT, PROMPT[:16], *prompts(3, seed=17)]
    async with bench.engine(*PREFIX) as engine:
        for weights in (bench.weights(), other, third, bench.weights(), other):
            await bench.update(engine, weights)
            for again in range(2):
                for request in bench.asks(asked, max_new_tokens=3):
                    told = f"prompt {request.request_id!r} asked {('first', 'again')[again]} after an update"
                    await expect_answered(bench, engine, request, weights=weights, told=told)


@rule("infer.prefix_cache.update_in_flight", law=7, requires=(*PREFIX, "weights.in_flight"))
async def update_in_flight(bench: InferBench) -> None:
    """What a request that lived through an update leaves behind serves no new request of the same tokens."""
    other = FolderWeights.of(bench.model(seed=21))
    async with bench.engine("prefix_cache", "weights.in_flight") as engine:
        long = bench.ask(*PROMPT, name="long", max_new_tokens=140)
        call = bench.call(engine.generate(long))
        await bench.until_generated(engine, 5)
        await bench.update(engine, other)
        made = (await bench.results([call]))[0]
        for count in (0, 1, 4, 16, 40, 120):
            request = bench.ask(*PROMPT, *made.output_ids[:count], name=f"after-{count}", max_new_tokens=4)
            told = f"a new prompt of the tokens of a request that lived through an update, {count} of its output"
            await expect_answered(bench, engine, request, weights=other, told=told)


@rule("infer.prefix_cache.not_the_output", law=1)
async def not_the_output(bench: InferBench) -> None:
    """A prompt asked again is drawn anew, at its own temperature: prompts are kept, outputs are not."""
    async with bench.engine(*PREFIX) as engine:
        results = []
        for number in range(6):
            heat = (1.0, 0.5)[number % 2]
            request = bench.ask(*PROMPT, name=f"t{number}", temperature=heat, max_new_tokens=16, **bench.seeded(number))
            results.append(await expect_answered(bench, engine, request))
    distinct = len({result.output_ids for result in results})
    expect(distinct == 6, f"one prompt asked 6 times with draws of its own gave {distinct} different outputs")
