"""One replica over several ranks: the same answers as one, and no rank left behind by an update.

Knows: the layouts of the adapter that cut tensors.
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
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#ranks", requires=TENSOR, since=(1, 2))


def tensor_layouts(bench: InferBench) -> Sequence[Mapping[str, int]]:
    """Return the adapter's layouts that cut tensors and nothing else; Inconclusive if it names none."""
    parsed = [dict(parse_backend(f"any:{text}").layout) for text in bench.target.adapter.layouts]
    found = [one for one in parsed if {axis for axis, degree in one.items() if degree > 1} == {"t"}]
    if not found:
        raise Inconclusive(f"the adapter's layouts are {', '.join(bench.target.adapter.layouts)}: none cuts tensors")
    return found


def _requests(bench: InferBench, *, length: int) -> list[GenerationRequest]:
    lengths = [length + number for number in range(6)]
    return bench.asks(prompts(6, seed=29, longest=40), temperature=[0.0, 1.0, 0.6], max_new_tokens=lengths)


@rule("infer.parallel.tokens")
async def tokens(bench: InferBench) -> None:
    """A replica over several ranks generates what the whole model does, with its log-probs, alone and in a batch."""
    for layout in tensor_layouts(bench):
        async with bench.engine(*TENSOR, layout=layout) as engine:
            requests = _requests(bench, length=12)
            alone = [await bench.generate(engine, request) for request in requests]
            together = await bench.together(engine, requests)
        for told, results in (("alone", alone), ("in a batch", together)):
            for request, result in zip(requests, results, strict=True):
                expect_policy(bench, result, request, told=f"{layout}: request {request.request_id!r} {told}")


@rule("infer.parallel.update", law=7)
async def update(bench: InferBench) -> None:
    """After an update every rank computes with the new weights, and the receipt proves the bytes that were sent."""
    for layout in tensor_layouts(bench):
        async with bench.engine(*TENSOR, layout=layout) as engine:
            for seed in (5, 6, 0):
                weights = bench.weights(bench.model(seed=seed))
                await proved_update(bench, engine, weights)
                for request in _requests(bench, length=6):
                    told = f"{layout}: {request.request_id!r} after an update to the weights of seed {seed}"
                    await expect_answered(bench, engine, request, weights=weights, told=told)


@rule("infer.parallel.in_flight", requires=("parallel.tensor", "weights.in_flight"))
async def in_flight(bench: InferBench) -> None:
    """While tokens are generated all ranks change weights between the same two tokens: every stamp is true."""
    for layout in tensor_layouts(bench):
        async with bench.engine("parallel.tensor", "weights.in_flight", layout=layout) as engine:
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
