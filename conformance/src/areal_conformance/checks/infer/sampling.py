"""Tokens are drawn from the distribution asked for, and their log-probs are that distribution's.

Knows: temperature, top-k and top-p, alone, together, and side by side in one batch.
Does not know: seeds as such (`sampling_seeds`), min-p and penalties as such (`sampling_penalties`), what ends an output
(`sampling_ends`).

Statistical checks draw with fixed seeds and fail where a right engine would with a chance below `IMPROBABLE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import LOGPROB_ATOL, prompts, well_formed
from areal_conformance.oracles.sampling import Filtered, filtered, improbability, penalised
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, SamplingParams

IMPROBABLE = 1e-9
NUM_DRAWS = 1200
SLOTS = 64
PROMPTS = ((5, 9, 7), (11, 30, 8, 41, 6))
FILTERS = ("temperature", "min_p", "top_k", "top_p")
PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#sampling")


@rule("infer.sampling.temperature")
async def temperature(bench: InferBench) -> None:
    """Tokens come as often as the policy at the request's temperature says, whatever its neighbours' temperature."""
    await judge_draws(bench, [{"temperature": heat} for heat in (1.0, 0.5, 2.0)])


@rule("infer.sampling.top_k", requires=("sampling.top_k",))
async def top_k(bench: InferBench) -> None:
    """With top_k tokens are drawn from the k best alone, in their proportions; log-probs are renormalised."""
    cases: list[dict[str, Any]] = [
        {"top_k": 1},
        {"top_k": 2},
        {"top_k": 7, "temperature": 2.0},
        {"top_k": 63},
        {"top_k": 1000},
        {"top_k": 0},
    ]
    await judge_draws(bench, cases, "sampling.top_k")


@rule("infer.sampling.top_p", requires=("sampling.top_p",))
async def top_p(bench: InferBench) -> None:
    """With top_p tokens are drawn from the fewest best ones whose probability, after temperature, reaches p."""
    cases: list[dict[str, Any]] = [
        {"top_p": 1e-6},
        {"top_p": 0.4},
        {"top_p": 0.8, "temperature": 2.0},
        {"top_p": 0.9, "temperature": 0.5},
    ]
    await judge_draws(bench, [*cases, {"top_p": 0.99}, {"top_p": 1.0}], "sampling.top_p")


@rule("infer.sampling.filters", requires=("sampling.top_k", "sampling.top_p"))
async def filters(bench: InferBench) -> None:
    """Temperature comes first, then top_k, then top_p of what top_k has left."""
    cases: list[dict[str, Any]] = [
        {"temperature": 2.0, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 4, "top_p": 0.7},
        {"temperature": 0.6, "top_k": 8, "top_p": 0.95},
        {"temperature": 3.0, "top_k": 2, "top_p": 0.6},
    ]
    await judge_draws(bench, cases, "sampling.top_k", "sampling.top_p")


@rule("infer.sampling.every_token")
async def every_token(bench: InferBench) -> None:
    """What a request asks for holds for each of its tokens, in a batch where every request asks for something else."""
    asked: list[dict[str, Any]] = [{"temperature": heat} for heat in (0.02, 0.4, 1.0, 1.8)]
    asked += [{"top_k": 3, "temperature": 1.5}, {"top_k": 1}, {"top_p": 0.5}, {"top_p": 0.9, "temperature": 0.7}]
    claims, cases = claimed_cases(bench, [*asked, {"top_k": 12, "top_p": 0.8, "temperature": 1.3}])
    async with bench.engine(*claims) as engine:
        pairs = zip(prompts(2 * len(cases), seed=7, longest=20), 2 * cases, strict=True)
        requests = [
            bench.ask(*ids, name=f"r{number}", max_new_tokens=30, **bench.seeded(number), **hot(case))
            for number, (ids, case) in enumerate(pairs)
        ]
        results = await bench.together(engine, requests)
    for request, result in zip(requests, results, strict=True):
        judge_output(bench, request, result)


@rule("infer.sampling.surprise")
async def surprise(bench: InferBench) -> None:
    """Over whole outputs tokens are as surprising as the policy says: none is drawn colder or hotter."""
    for heat in (1.0, 0.6):
        async with bench.engine(max_concurrent=SLOTS) as engine:
            requests = bench.asks(prompts(30, seed=8, longest=8), temperature=heat, max_new_tokens=32, seed=500)
            results = await bench.together(engine, requests)
        first, later = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for request, result in zip(requests, results, strict=True):
            well_formed(result, request)
            logits = bench.oracle().logits([*request.input_ids, *result.output_ids])[len(request.input_ids) - 1 : -1]
            logprobs = torch.log_softmax(logits.double() / heat, -1)
            chosen = logprobs.gather(1, torch.tensor(result.output_ids).unsqueeze(1))[:, 0]
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            variance = (logprobs.exp() * logprobs**2).sum(-1) - entropy**2
            both = torch.stack([-chosen - entropy, variance])
            first += both[:, :1].sum(1)
            later += both[:, 1:].sum(1)
        for told, (off, variance_sum) in (("first tokens", first.tolist()), ("later tokens", later.tolist())):
            deviations = off / variance_sum**0.5
            off = f"{deviations:+.1f} standard deviations from the policy's entropy"
            drawn = f"they are drawn too {'hot' if deviations > 0 else 'cold'}"
            expect(abs(deviations) < 7.0, f"at temperature {heat:g} the surprise of {told} is {off}: {drawn}")


def hot(sampling: dict[str, Any]) -> dict[str, Any]:
    """Return sampling at temperature 1 unless it says otherwise."""
    return {"temperature": 1.0, **sampling}


def claimed_cases(bench: InferBench, cases: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the claims of top_k and top_p that a target makes, and the cases that need no other."""
    claims = [f"sampling.{name}" for name in ("top_k", "top_p") if bench.target.claimed(f"sampling.{name}")]
    needed = [{f"sampling.{name}" for name in case if name != "temperature"} for case in cases]
    return claims, [case for case, names in zip(cases, needed, strict=True) if names <= {*claims}]


def drawn_from(
    logits: Tensor,
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    forbidden: Iterable[int] = (),
) -> Filtered:
    """Return the distribution of the token after `prompt` and `output`; of a greedy request that of temperature 1."""
    scores = penalised(logits, prompt=prompt, output=output, **{name: getattr(sampling, name) for name in PENALTIES})
    asked = {name: getattr(sampling, name) for name in FILTERS} if sampling.temperature else {}
    return filtered(scores, forbidden=forbidden, **asked)


async def judge_draws(bench: InferBench, cases: Sequence[dict[str, Any]], *claims: str) -> None:
    """Draw single tokens of every case, all in one crowd, and compare how often each came, and its log-prob."""
    claims = (*claims, "sampling.seed") if bench.target.claimed("sampling.seed") else claims
    async with bench.engine(*claims, max_concurrent=SLOTS) as engine:
        results = await _draws(bench, engine, cases)
    for (case, prompt), generations in results.items():
        told = f"{cases[case] or 'no filter'} after {list(prompt)}"
        _judge_case(bench, cases[case], prompt, generations, told)


async def _draws(
    bench: InferBench, engine: InferenceEngine, cases: Sequence[dict[str, Any]]
) -> dict[tuple[int, tuple[int, ...]], list[Generation]]:
    keys = [(case, prompt) for case in range(len(cases)) for prompt in PROMPTS]
    keys = [keys[number % len(keys)] for number in range(NUM_DRAWS * len(cases))]
    requests = [
        bench.ask(*prompt, name=f"draw-{number}", max_new_tokens=1, **bench.seeded(number), **hot(cases[case]))
        for number, (case, prompt) in enumerate(keys)
    ]
    results: dict[tuple[int, tuple[int, ...]], list[Generation]] = {}
    for key, result in zip(keys, await asyncio.gather(*map(engine.generate, requests)), strict=True):
        results.setdefault(key, []).append(result)
    return results


def _judge_case(
    bench: InferBench, case: dict[str, Any], prompt: tuple[int, ...], generations: list[Generation], told: str
) -> None:
    wanted = drawn_from(bench.oracle().logits(prompt)[-1], SamplingParams(**hot(case)), prompt, ())
    if not wanted.decided:
        return
    drawn = [generation.output_ids[0] for generation in generations]
    _judge_support(bench, wanted, drawn, told)
    tolerance = bench.tolerance(atol=LOGPROB_ATOL)
    for token, generation in zip(drawn, generations, strict=True):
        given, right = generation.logprobs[0], float(wanted.logprobs[token])
        near = abs(given - right) <= tolerance.atol or token not in wanted.support
        due = f"what is drawn from gives {right:.5f}"
        expect(near, f"{told}: token {token} is reported with log-prob {given:.5f}; {due}")
    logprobs = wanted.logprobs
    if bench.dtype != "float32":  # the truth is too far from what such an engine draws from: hold it to its own word
        logprobs = torch.full_like(logprobs, -torch.inf)
        for token, generation in zip(drawn, generations, strict=True):
            logprobs[token] = generation.logprobs[0]
    chance = improbability(drawn, logprobs)
    likeliest = int(logprobs.argmax())
    came, share = drawn.count(likeliest) / len(drawn), float(logprobs[likeliest].exp())
    off = f"its likeliest token {likeliest} came in {came:.3f} of them, it should in {share:.3f}"
    expect(chance > IMPROBABLE, f"{told}: {len(drawn)} draws fit the policy with a chance of {chance:.1e}; {off}")


def _judge_support(bench: InferBench, wanted: Filtered, drawn: Sequence[int], told: str) -> None:
    if bench.dtype != "float32":
        return
    outside = [token for token in drawn if token not in wanted.support]
    kept = f"the {len(wanted.support)} tokens left by the filter, for example {outside[:3]}"
    expect(not outside, f"{told}: {len(outside)} of {len(drawn)} draws are outside {kept}")


def judge_output(
    bench: InferBench,
    request: GenerationRequest,
    result: Generation,
    *,
    forbidden: Sequence[int] = (),
    until: int = 0,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Expect each token of an output within its filter, the best one if greedy, with that distribution's log-prob.

    `forbidden` tokens are ruled out for the first `until` tokens. `tensors` are the weights if not the folder's.
    """
    well_formed(result, request)
    sampling, whole = request.sampling, [*request.input_ids, *result.output_ids]
    first = len(request.input_ids) - request.num_prior
    logits = bench.oracle().logits(whole, tensors)[len(request.input_ids) - 1 : -1]
    allowed = bench.tolerance(atol=LOGPROB_ATOL).atol
    for place, (token, given) in enumerate(zip(result.output_ids, result.logprobs, strict=True)):
        before = whole[: len(request.input_ids) + place]
        ruled_out = forbidden if place < until else ()
        wanted = drawn_from(logits[place], sampling, before[:first], before[first:], ruled_out)
        if not wanted.decided:
            continue
        told = f"request {request.request_id!r}, token {place} of {len(result.output_ids)}"
        _judge_support(bench, wanted, [token], told)
        if sampling.temperature == 0:
            behind = float(wanted.logprobs.max() - wanted.logprobs[token])
            best = f"the best one after penalties is {int(wanted.logprobs.argmax())} by {behind:.4f} in log-probability"
            expect(behind <= allowed, f"{told}: greedy token {token}, {best}")
        right = float(wanted.logprobs[token])
        due = f"the distribution drawn from, after penalties, temperature and filters, gives {right:.5f}"
        near = abs(given - right) <= allowed or token not in wanted.support
        expect(near, f"{told}: {token} is reported with log-prob {given:.5f}; {due}")
