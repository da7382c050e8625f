"""Min-p, and penalties on what came before: drawn as asked, reported as drawn, counted over the whole output.

Knows: min_p, frequency, presence and repetition penalties, greedy and drawn, in mixed company, paused, continued.
Does not know: temperature, top-k and top-p as such (`sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
from attrs import frozen

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import PENALTIES, drawn_from, hot, judge_draws, judge_output
from areal_conformance.oracles.infer_judging import LOGPROB_ATOL, prompts
from areal_conformance.outcome import expect
from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, SamplingParams

LENGTH = 40
MANY_DEVIATIONS = 6.0
"""Beyond it lie draws that know of their penalties with a chance of 2e-9."""
FEELS_NOTHING = 1e-6
"""Summed variance below which no draw could show a penalty."""
COUNTED: tuple[dict[str, Any], ...] = (
    {},
    {"frequency_penalty": 1.2},
    {"frequency_penalty": -0.4},
    {"presence_penalty": 1.5},
    {"presence_penalty": -1.0},
    {"frequency_penalty": 0.6, "presence_penalty": 0.9, "temperature": 0.5},
    {"frequency_penalty": 2.0, "temperature": 2.0},
    {"frequency_penalty": 0.8, "temperature": 0.0},
    {"presence_penalty": 2.0, "temperature": 0.0},
)
REPEATED: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6},
    {"repetition_penalty": 2.0, "temperature": 0.4},
    {"repetition_penalty": 0.4, "temperature": 2.0},
    {"repetition_penalty": 1.5, "temperature": 0.0},
)
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#sampling", since=(1, 2))


@rule("infer.sampling.min_p", requires=("sampling.min_p",))
async def min_p(bench: InferBench) -> None:
    """With min_p what is less probable, after temperature, than that share of the likeliest token is never drawn."""
    cases = [{"min_p": 0.3}, {"min_p": 0.1, "temperature": 2.0}, {"min_p": 0.05, "temperature": 0.5}]
    await judge_draws(bench, [*cases, {"min_p": 1.0}, {"min_p": 0.0}], "sampling.min_p")


@rule("infer.sampling.min_p_filters", requires=("sampling.min_p", "sampling.top_k", "sampling.top_p"))
async def min_p_filters(bench: InferBench) -> None:
    """min_p comes after temperature and before top_k and top_p: top_p is of what it has left."""
    cases: list[dict[str, Any]] = [
        {"min_p": 0.2, "top_p": 0.8, "temperature": 2.0},
        {"min_p": 0.1, "top_k": 3},
        {"min_p": 0.05, "top_k": 12, "top_p": 0.7, "temperature": 1.5},
    ]
    await judge_draws(bench, cases, "sampling.min_p", "sampling.top_k", "sampling.top_p")


@rule("infer.sampling.penalties", requires=("sampling.penalties",))
async def penalties(bench: InferBench) -> None:
    """Frequency and presence penalties count the output alone, in a batch where every request asks for something else.

    Greedy or drawn, tokens come from the penalised distribution, and log-probs are of it.
    """
    await _judge_crowd(bench, COUNTED, "sampling.penalties")


@rule("infer.sampling.repetition_penalty", requires=("sampling.repetition_penalty",))
async def repetition_penalty(bench: InferBench) -> None:
    """A repetition penalty divides a positive logit and multiplies a negative one, of tokens in prompt or output."""
    await _judge_crowd(bench, REPEATED, "sampling.repetition_penalty")


@rule("infer.sampling.penalties_paused", requires=("sampling.penalties", "pause.keep"))
async def penalties_paused(bench: InferBench) -> None:
    """What was counted before a pause still counts after it."""
    async with bench.engine("sampling.penalties", "pause.keep") as engine:
        asked = _crowd(bench, COUNTED, length=45)
        calls = bench.start(engine, asked)
        await bench.freeze(engine, times=2, after=8 * len(asked))
        results = await bench.results(calls)
    _judge(bench, asked, results)


@rule("infer.sampling.penalties_continued", spec="infer#continued-requests", requires=("sampling.penalties",))
async def penalties_continued(bench: InferBench) -> None:
    """Penalties of a continued request count its prior tokens too; an engine that cannot refuses such a request."""
    async with bench.engine("sampling.penalties") as engine:
        asked = _crowd(bench, COUNTED[1:], length=12, prior=(20, 21, 20, 20, 33, 21, 40))
        first = await _refusal(engine, asked[0])
        if first is not None:
            bench.notes.append(f"continued requests with penalties are refused: {first}")
            return
        results = await bench.together(engine, asked)
    _judge(bench, asked, results)


async def _refusal(engine: InferenceEngine, request: GenerationRequest) -> str | None:
    try:
        await engine.generate(request)
    except CapabilityError as error:
        expect(error.why or error.fix, f"{request.request_id!r} is refused without a reason: {error}")
        return error.what
    return None


async def _judge_crowd(bench: InferBench, cases: Sequence[dict[str, Any]], claim: str) -> None:
    async with bench.engine(claim) as engine:
        asked = _crowd(bench, cases, length=LENGTH)
        together = await bench.together(engine, asked)
        alone = [await bench.generate(engine, request) for request in asked[: len(cases)]]
    _judge(bench, asked, together)
    _judge(bench, asked[: len(cases)], alone)


def _crowd(
    bench: InferBench, cases: Sequence[dict[str, Any]], *, length: int, prior: tuple[int, ...] = ()
) -> list[GenerationRequest]:
    """Return three requests of every case."""
    many = 3 * [*cases]
    return [
        bench.ask(
            *(*ids, *prior),
            name=f"{number}/{case}",
            num_prior=len(prior),
            max_new_tokens=length,
            **bench.seeded(900 + number),
            **hot(case),
        )
        for number, (ids, case) in enumerate(zip(prompts(len(many), seed=21, longest=16), many, strict=True))
    ]


def _judge(bench: InferBench, asked: Sequence[GenerationRequest], results: Sequence[Generation]) -> None:
    """Expect log-probs of the distribution asked for, the best greedy tokens, and draws that feel the penalties."""
    leanings: dict[SamplingParams, list[_Leaning]] = {}
    for request, result in zip(asked, results, strict=True):
        judge_output(bench, request, result)
        case = attrs.evolve(request.sampling, seed=None)
        leanings.setdefault(case, []).append(_leaning(bench, request, result))
    for case, found in leanings.items():
        variance = sum(one.variance for one in found)
        deviations = sum(one.off for one in found) / variance**0.5 if variance > FEELS_NOTHING else 0.0
        asked_for = f"with {tuple(getattr(case, name) for name in PENALTIES)} at temperature {case.temperature:g}"
        told = f"the draws lean to what is penalised {deviations:+.1f} standard deviations less than they should"
        expect(abs(deviations) < MANY_DEVIATIONS, f"{asked_for} {told}")


@frozen
class _Leaning:
    """How far the draws of a request went with the penalties, less what is due, and the variance of that."""

    off: float = 0.0
    variance: float = 0.0


def _leaning(bench: InferBench, request: GenerationRequest, result: Generation) -> _Leaning:
    """Sum log p(token) - log p(token without penalties), which tells best whether a draw knew of them.

    Greedy tokens are no draws; they must be the best ones.
    """
    ids, output, sampling = request.input_ids, result.output_ids, request.sampling
    first = len(ids) - request.num_prior
    rows = bench.oracle().logits([*ids, *output])[len(ids) - 1 : -1]
    free = attrs.evolve(sampling, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0)
    allowed = bench.tolerance(atol=LOGPROB_ATOL).atol
    off, variance = 0.0, 0.0
    for place, (row, token) in enumerate(zip(rows, output, strict=True)):
        before = (ids[:first], [*ids[first:], *output[:place]])
        wanted = drawn_from(row, sampling, *before).logprobs
        if sampling.temperature == 0:
            behind = float(wanted.max() - wanted[token])
            best = f"the best one after penalties is {int(wanted.argmax())} by {behind:.4f} in log-probability"
            expect(behind <= allowed, f"request {request.request_id!r}: greedy token {place} is {token}, {best}")
            continue
        chances, gain = wanted.exp(), wanted - drawn_from(row, free, *before).logprobs
        due = float((chances * gain).sum())
        off += float(gain[token]) - due
        variance += float((chances * gain**2).sum()) - due**2
    return _Leaning(off, variance)
