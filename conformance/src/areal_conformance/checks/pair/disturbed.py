"""What must not change a run changes no bit of it: more replicas, twins that go, scores, evaluations, silence.

Knows: a few steps of generate, train and update, left alone or disturbed.
Does not know: what disturbs single requests (`infer.disturbed`), or whether a run learns (`learning`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from attrs import frozen
from torch import Tensor

from areal_conformance.benches.pair import PROMPTS, Pair, PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import changed, tensors_of
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation

STEPS = 3
LENGTH, TWIN = 10, 60
SILENCE_S = 1.0


@frozen
class _Ended:
    """What a run sampled, step by step, and what it ended with."""

    tokens: list[list[tuple[tuple[int, ...], tuple[float, ...]]]]
    weights: dict[str, Tensor]


async def _sampled(pair: Pair, version: int) -> list[Generation]:
    """Return an output of each prompt, all asked for at once, each with a seed of its own."""
    asked = [
        pair.generate((prompt,), temperature=1.0, seed=100 * version + place, max_new_tokens=LENGTH)
        for place, prompt in enumerate(PROMPTS)
    ]
    return [generation for (generation,) in await asyncio.gather(*asked)]


async def _among_twins(pair: Pair, version: int) -> list[Generation]:
    """Return the same while longer twins of the requests are under way, which are cancelled then; evaluate as well."""
    seeds = [100 * version + place for place in range(len(PROMPTS))]
    twins = [
        asyncio.ensure_future(pair.generate((prompt,), temperature=1.0, seed=seed, max_new_tokens=TWIN))
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    await asyncio.sleep(0)  # their turn comes first
    generations = await _sampled(pair, version)
    for twin in twins:
        twin.cancel()
    await asyncio.gather(*twins, return_exceptions=True)
    await pair.generate(max_new_tokens=5)
    await pair.logprobs(pair.batch(generations))
    if version == 1:
        await asyncio.sleep(SILENCE_S)
    return generations


async def _run(pair: Pair, folder: Path, *, disturbed: bool) -> _Ended:
    tokens = []
    for version in range(STEPS):
        generations = await (_among_twins if disturbed else _sampled)(pair, version)
        tokens.append([(one.output_ids, one.logprobs) for one in generations])
        await pair.step(pair.batch(generations))
        await pair.update()
    return _Ended(tokens, tensors_of(await pair.saved(folder)))


@check(
    "pair.run.disturbed",
    level=Level.LOOP,
    law=3,
    spec="train",
    requires=("infer.sampling.seed", "infer.deterministic"),
    deadline_s=120.0,
)
async def disturbed(bench: PairBench) -> None:
    """Two replicas for one, cancelled twins, evaluations, scores and a second of silence change no bit of a run."""
    runs = []
    for replicas in (1, 2):
        async with bench.pair(replicas=replicas, infer_claims=("deterministic",)) as pair:
            runs.append(await _run(pair, bench.folder / f"run-{replicas}", disturbed=replicas == 2))
    left, right = runs
    for version, (one, other) in enumerate(zip(left.tokens, right.tokens, strict=True)):
        expect(one == other, f"a run that was disturbed sampled {other} at version {version}, left alone {one}")
    wrong = changed(left.weights, right.weights)
    expect(not wrong, f"a run that was disturbed ends with other weights: {wrong[:4]}")
