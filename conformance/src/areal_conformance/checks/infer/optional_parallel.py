"""One replica over several ranks: the same answers as one, and no rank left behind by an update.

Knows: the layouts of the adapter that cut tensors, the stack of layers, or both.
Does not know: how ranks meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.content import proved_update
from areal_conformance.checks.infer.versions import harvest, start_all, told_engine
from areal_conformance.oracles.infer_judging import (
    all_true_to_versions,
    expect_answered,
    expect_policy,
    prompts,
    versions_of,
)
from areal_conformance.outcome import Inconclusive, expect
from areal_core.config.backend import parse_backend
from areal_core.contract.inference import GenerationRequest

TENSOR = ("parallel.tensor",)
PIPELINE = ("parallel.pipeline",)
CLAIMS = {"t": "parallel.tensor", "p": "parallel.pipeline"}
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#ranks", requires=TENSOR, since=(1, 2))
stages_rule = partial(check, level=Level.SINGLE, law=1, spec="infer#ranks", requires=PIPELINE, since=(1, 5))


def layouts_of(bench: InferBench, axis: str) -> Sequence[Mapping[str, int]]:
    """Return the adapter's layouts that cut along an axis, and along others only if it claims them.

    Raises:
        Inconclusive: the adapter names none.
    """
    named = bench.target.adapter.layouts
    parsed = [dict(parse_backend(f"any:{text}").layout) for text in named]
    found = [layout for layout in parsed if axis in _cut(layout) and _claimed(bench, _cut(layout))]
    if not found:
        raise Inconclusive(f"the adapter's layouts are {', '.join(named)}: none shows {CLAIMS[axis]}")
    return found


def _cut(layout: Mapping[str, int]) -> set[str]:
    return {axis for axis, degree in layout.items() if degree > 1}


def _claimed(bench: InferBench, axes: set[str]) -> bool:
    return all(axis in CLAIMS and bench.target.claimed(CLAIMS[axis]) for axis in axes)


@rule("infer.parallel.tokens")
async def tokens(bench: InferBench) -> None:
    """A replica over several ranks generates what the whole model does, with its log-probs, alone and in a batch."""
    await _tokens(bench, "t")


@rule("infer.parallel.update", law=7)
async def update(bench: InferBench) -> None:
    """After an update every rank computes with the new weights, and the receipt proves the bytes that were sent."""
    await _update(bench, "t")


@rule("infer.parallel.in_flight", requires=("parallel.tensor", "weights.in_flight"))
async def in_flight(bench: InferBench) -> None:
    """While tokens are generated all ranks change weights between the same two tokens: every stamp is true."""
    await _in_flight(bench, "t")


@stages_rule("infer.pipeline.tokens")
async def stages_tokens(bench: InferBench) -> None:
    """A replica whose layers are on several ranks generates what the whole model does, alone and in a batch."""
    await _tokens(bench, "p")


@stages_rule("infer.pipeline.update", law=7)
async def stages_update(bench: InferBench) -> None:
    """After an update every stage computes with the new weights, and the receipt proves all that were sent."""
    await _update(bench, "p")


@stages_rule("infer.pipeline.in_flight", requires=("parallel.pipeline", "weights.in_flight"))
async def stages_in_flight(bench: InferBench) -> None:
    """No token is computed by stages of two versions, however many batches are between them: every stamp is true."""
    await _in_flight(bench, "p")


def _requests(bench: InferBench, *, length: int) -> list[GenerationRequest]:
    lengths = [length + number for number in range(6)]
    return bench.asks(prompts(6, seed=29, longest=40), temperature=[0.0, 1.0, 0.6], max_new_tokens=lengths)


async def _tokens(bench: InferBench, axis: str) -> None:
    for layout in layouts_of(bench, axis):
        async with bench.engine(CLAIMS[axis], layout=layout) as engine:
            requests = _requests(bench, length=12)
            alone = [await bench.generate(engine, request) for request in requests]
            together = await bench.together(engine, requests)
        for told, results in (("alone", alone), ("in a batch", together)):
            for request, result in zip(requests, results, strict=True):
                expect_policy(bench, result, request, told=f"{layout}: request {request.request_id!r} {told}")


async def _update(bench: InferBench, axis: str) -> None:
    for layout in layouts_of(bench, axis):
        async with bench.engine(CLAIMS[axis], layout=layout) as engine:
            for seed in (5, 6, 0):
                weights = bench.weights(bench.model(seed=seed))
                await proved_update(bench, engine, weights)
                for request in _requests(bench, length=6):
                    told = f"{layout}: {request.request_id!r} after an update to the weights of seed {seed}"
                    await expect_answered(bench, engine, request, weights=weights, told=told)


async def _in_flight(bench: InferBench, axis: str) -> None:
    for layout in layouts_of(bench, axis):
        async with bench.engine(CLAIMS[axis], "weights.in_flight", layout=layout) as engine:
            first = await told_engine(bench, engine)
            requests, calls = start_all(bench, engine, 3)
            for _ in range(2):
                await bench.until_generated(engine, 20)
                await told_engine(bench, engine)
            await bench.until_generated(engine, 20)
            results = await harvest(bench, engine, calls)
        all_true_to_versions(results, requests)
        seen = {version for result in results for version in versions_of(result)}
        expect(first in seen and len(seen) > 1, f"{layout}: updates in flight left stamps {sorted(seen)}")
