"""Scoring: the log-probs of given tokens, from the weights that serve.

Knows: `score`.
Does not know: generation beyond what runs beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from areal_conformance.benches.infer import ROOM, InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import LOGPROB_ATOL, VOCABULARY, expect_policies, prompts, raises
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError
from areal_torch.testing.serving import FolderWeights

SCORING = ("scoring",)
TEMPERATURES = (1.0, 0.5, 2.0)


def expect_scores(
    bench: InferBench,
    ids: Sequence[int],
    temperature: float,
    given: Sequence[float],
    weights: FolderWeights | None = None,
) -> None:
    """Expect scores to be those of the policy, or of other weights."""
    told = f"score of {len(ids)} tokens at temperature {temperature:g}"
    expect(len(given) == len(ids), f"{told}: {len(given)} numbers for {len(ids)} tokens")
    expect(all(isinstance(value, float) for value in given), f"{told}: plain floats travel, got {type(given[0])}")
    expect(given[0] == 0.0, f"{told}: the first token has nothing before it and must score 0.0, got {given[0]}")
    if len(ids) == 1:
        return
    tensors = None if weights is None else weights.tensors
    wanted = bench.oracle().logprobs(ids[:1], ids[1:], temperature=temperature, weights=tensors).tolist()
    allowed = bench.tolerance(atol=LOGPROB_ATOL).atol
    for place, (got, right) in enumerate(zip(given[1:], wanted, strict=True), start=1):
        scored = f"token {place} (id {ids[place]}) scores {got:.5f}, the policy gives it {right:.5f}"
        expect(abs(got - right) <= allowed, f"{told}: {scored}")


@check("infer.scoring.oracle", level=Level.SINGLE, law=1, spec="infer#scoring", requires=SCORING)
async def oracle(bench: InferBench) -> None:
    """score gives log p(token | everything before it) at the temperature asked for, and 0.0 for the first token."""
    async with bench.engine(*SCORING) as engine:
        scorer: Any = engine  # Any: an optional protocol
        long = tuple(2 + (7 * place) % 61 for place in range(300))
        for number, ids in enumerate([*prompts(6, seed=11, longest=50), (7,), (7, 7), (1, 0, 2), long]):
            temperature = TEMPERATURES[number % 3]
            expect_scores(bench, ids, temperature, await scorer.score(ids, temperature))
        for temperature in TEMPERATURES:  # one after another on the same tokens: nothing may be kept between calls
            expect_scores(bench, (5, 9, 7, 30, 8), temperature, await scorer.score([5, 9, 7, 30, 8], temperature))


@check("infer.scoring.generated", level=Level.SINGLE, law=1, spec="infer#scoring", requires=SCORING)
async def generated(bench: InferBench) -> None:
    """What was generated scores as it was reported, at the same temperature."""
    async with bench.engine(*SCORING) as engine:
        scorer: Any = engine
        for number, ids in enumerate(prompts(3, seed=12)):
            temperature = TEMPERATURES[number]
            made = await engine.generate(bench.ask(*ids, temperature=temperature, max_new_tokens=20))
            scores = list(await scorer.score((*ids, *made.output_ids), temperature))[len(ids) :]
            far = max(abs(left - right) for left, right in zip(scores, made.logprobs, strict=True))
            allowed = bench.tolerance(atol=2 * LOGPROB_ATOL).atol
            expect(far <= allowed, f"score and generate differ by {far:.5f} on the same tokens, at {temperature:g}")


@check("infer.scoring.follows_updates", level=Level.SINGLE, law=7, spec="infer#scoring", requires=SCORING)
async def follows_updates(bench: InferBench) -> None:
    """Scores are those of the weights committed last, not of staged ones, and not of those before."""
    ids, other = (5, 9, 7, 30, 8, 41), FolderWeights.of(bench.model(seed=21))
    async with bench.engine(*SCORING) as engine:
        scorer: Any = engine
        expect_scores(bench, ids, 1.0, await scorer.score(ids, 1.0))
        if bench.target.claimed("weights.staged"):
            version = await bench.serving(engine) + 1
            await engine.receive_weights(other.offer(version), version)
            expect_scores(bench, ids, 1.0, await scorer.score(ids, 1.0))
            await engine.abort_weights()
            expect_scores(bench, ids, 1.0, await scorer.score(ids, 1.0))
        await bench.update(engine, other)
        expect_scores(bench, ids, 1.0, await scorer.score(ids, 1.0), other)
        await bench.update(engine, bench.weights())
        expect_scores(bench, ids, 1.0, await scorer.score(ids, 1.0))


@check("infer.scoring.beside_generation", level=Level.SINGLE, law=1, spec="infer#scoring", requires=SCORING)
async def beside_generation(bench: InferBench) -> None:
    """Many scores and many requests at once get each their own, and the requests do not notice."""
    async with bench.engine(*SCORING) as engine:
        scorer: Any = engine
        requests = bench.asks(prompts(6, seed=13), temperature=[1.0, 0.0], max_new_tokens=20)
        calls = bench.start(engine, requests)
        await bench.until_generated(engine, 6)
        asked = [(ids, TEMPERATURES[n % 3]) for n, ids in enumerate(prompts(9, seed=14))]
        scores = await bench.ended([bench.call(scorer.score(*question)) for question in asked], "every score to return")
        results = await bench.results(calls)
    for (ids, temperature), given in zip(asked, scores, strict=True):
        if isinstance(given, BaseException):
            raise given
        expect_scores(bench, ids, temperature, given)
    expect_policies(bench, zip(results, requests, strict=True))


@check("infer.scoring.unfit", level=Level.SINGLE, law=5, spec="infer#scoring", requires=SCORING)
async def unfit(bench: InferBench) -> None:
    """Tokens that cannot be scored, and temperatures that are not positive, are refused with a typed error."""
    questions: dict[str, tuple[tuple[int, ...], float]] = {
        "no tokens": ((), 1.0),
        "an id one past the vocabulary": ((5, VOCABULARY), 1.0),
        "a negative id": ((5, -1, 9), 1.0),
        "more tokens than the context holds": ((5,) * (ROOM + 1), 1.0),
        "temperature 0": ((5, 9, 7), 0.0),
        "a negative temperature": ((5, 9, 7), -1.0),
    }
    async with bench.engine(*SCORING) as engine:
        scorer: Any = engine
        for told, (ids, temperature) in questions.items():
            await raises(ArealError, partial(scorer.score, ids, temperature), f"score of {told}")
        expect_scores(bench, (5, 9, 7), 1.0, await scorer.score((5, 9, 7), 1.0))
