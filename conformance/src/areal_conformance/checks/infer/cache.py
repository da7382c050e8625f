"""Cached keys and values across an update: kept or made anew as claimed, and never shared with a new request.

Knows: the truth of both, computed by hand (`benches.infer_truth`).
Does not know: how an engine caches.
"""

from __future__ import annotations

import asyncio

import torch
from torch import Tensor

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.benches.infer_truth import Segment
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.versions import harvest
from areal_conformance.oracles.infer_judging import expect_logprobs, expect_policy, gap, prompts, well_formed
from areal_conformance.outcome import Inconclusive, Violation
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine

KEPT = "weights.kv_kept"
RECOMPUTED = "weights.kv_recomputed"
"""Key of an adapter's options that switch from keeping to recomputing, for engines that can do both."""
TOKENS = 150


async def _through_updates(
    bench: InferBench, engine: InferenceEngine
) -> tuple[list[GenerationRequest], list[Generation], dict[int, dict[str, Tensor]]]:
    """Run requests through two updates; return them, their outputs, and the tensors of each version."""
    first = await bench.serving(engine)
    tensors = {first: bench.weights().tensors}
    asked = lasting = LONG if bench.target.claimed("pause.abort") else 4 * TOKENS
    requests = [
        bench.ask(*ids, name=f"r{n}", temperature=1.0, max_new_tokens=asked)
        for n, ids in enumerate(prompts(3, seed=4, longest=12))
    ]
    calls = [bench.call(engine.generate(request)) for request in requests]
    for seed in (5, 6):
        await bench.until_generated(engine, 60)
        weights = bench.weights(bench.model(seed=seed))
        tensors[await bench.update(engine, weights)] = weights.tensors
    await bench.until_generated(engine, 60)
    results = await harvest(bench, engine, calls)
    if all(len(result.version_spans) < 2 for result in results):
        raise Inconclusive(f"requests of {lasting} tokens ended before the first update")
    return requests, results, tensors


def _kept(bench: InferBench, request: GenerationRequest, result: Generation, tensors: dict[int, dict[str, Tensor]]):  # type: ignore[no-untyped-def]
    segments = [Segment(span.start, span.stop, tensors[span.version]) for span in result.version_spans]
    return bench.oracle().kept(request.input_ids, result.output_ids, segments)


def _anew(bench: InferBench, request: GenerationRequest, result: Generation, tensors: dict[int, dict[str, Tensor]]):  # type: ignore[no-untyped-def]
    parts = [
        bench.oracle().logprobs(request.input_ids, result.output_ids, weights=tensors[span.version])[
            span.start : span.stop
        ]
        for span in result.version_spans
    ]
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
        requests = [
            bench.ask(*prompt, name=f"r{n}", temperature=float(n % 2), max_new_tokens=6)
            for n, prompt in enumerate(asked)
        ]
        for seed in (5, 6, 0):
            running = []
            if in_flight:
                running = [bench.call(engine.generate(bench.ask(*ids, name="running", max_new_tokens=LONG)))]
            await bench.results([bench.call(engine.generate(request)) for request in requests])
            weights = bench.weights(bench.model(seed=seed))
            await bench.update(engine, weights)
            results = await bench.results([bench.call(engine.generate(request)) for request in requests])
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
        calls = [bench.call(engine.generate(request)) for request in requests]
        await bench.until_generated(engine, 5)
        weights = bench.weights(bench.model(seed=5))
        await bench.update(engine, weights)
        running.cancel()
        for result, request in zip(await bench.results(calls), requests, strict=True):
            expect_policy(bench, result, request, weights=weights, told=f"{request.request_id!r}")
