"""Budgets of precision of an inference engine: log-probs are float32, and cached keys and values what the run says,
places of tokens exact.

Knows: `probes.precision`, long outputs beside the float32 truth, prompts whose answer is a matter of places alone.
Does not know: the values of log-probs one by one, which other checks compare.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import well_formed
from areal_conformance.oracles.places import SHAPE, TOKENS, looking_back
from areal_conformance.outcome import Inconclusive, expect
from areal_conformance.probes.precision import GROWTH, fine

SPEC = "infer#precision"
MEAN = 2e-5
"""Budget of log-probs in a float32 run: their mean error. float32 leaves 1e-6, keys and values kept in half 1e-4."""
TEMPERATURES = (0.7, 1.3)
"""By which no dtype divides without rounding."""
DRAWS = 24
RATIO = 2e-4
"""Budget of ratios of tokens, in nats: float32 leaves 1e-6, logits divided in bfloat16 some thousandths."""
PROMPT = tuple(2 + (11 * place) % 61 for place in range(24))
LENGTH = 96
FAR = (60, 290, 701, 1230, 2190)
"""Lengths of prompts: bfloat16 tells neighbours apart up to 256, float16 up to 2,048."""
UNSURE = -0.3
"""Log-prob of the one right token below which others were looked at as well."""


@check("infer.precision.logprobs", level=Level.SINGLE, law=1, spec=SPEC)
async def logprobs(bench: InferBench) -> None:
    """Log-probs of what is generated are taken in float32 whatever the dtype of the run: none was rounded to less."""
    for dtype in bench.target.adapter.dtypes:
        async with bench.engine(dtype=dtype) as engine:
            given: list[float] = []
            for request in bench.asks([PROMPT, PROMPT[:5]], temperature=1.0, max_new_tokens=48):
                given += (await bench.generate(engine, request)).logprobs
        fine(f"log-probs of a run in {dtype}", torch.tensor(given, dtype=torch.float32))


@check("infer.precision.length", level=Level.SINGLE, law=1, spec=SPEC)
async def length(bench: InferBench) -> None:
    """Over a long output the error of log-probs stays within its budget and does not grow: nothing is kept in half."""
    for dtype in bench.target.adapter.dtypes:
        async with bench.engine(dtype=dtype) as engine:
            request = bench.ask(*PROMPT, temperature=1.0, max_new_tokens=LENGTH)
            result = await bench.generate(engine, request)
        wanted = bench.oracle().logprobs(PROMPT, result.output_ids).double()
        error = (torch.tensor(result.logprobs, dtype=torch.float64) - wanted).abs()
        early, late = float(error[:32].mean()), float(error[-32:].mean())
        bench.numbers[f"{dtype} early"], bench.numbers[f"{dtype} late"] = early, late
        told = (
            f"log-probs of a run in {dtype} err by {early:.2g} early in an output and by {late:.2g} after {LENGTH - 32}"
        )
        if dtype == "float32":
            allowed = bench.tolerance(atol=MEAN).atol
            expect(max(early, late) <= allowed, f"{told} tokens, on average; at most {allowed:g}")
        else:
            expect(late <= GROWTH * max(early, 2e-2), f"{told} tokens, at most {GROWTH:g} times as much")


@check("infer.precision.scores", level=Level.SINGLE, law=1, spec="infer#scoring", requires=("scoring",))
async def scores(bench: InferBench) -> None:
    """Scores are taken in float32 whatever the dtype of the run: none was rounded to less, at any temperature."""
    ids = (*PROMPT, *PROMPT[::-1], *PROMPT[::3], *PROMPT)
    for dtype in bench.target.adapter.dtypes:
        async with bench.engine(dtype=dtype) as engine:
            scorer: Any = engine  # Any: an optional protocol
            given = list(await scorer.score(ids, 1.0))
            found: _Found = {heat: {token: [] for token in range(2, 40)} for heat in (1.0, *TEMPERATURES)}
            for heat in (1.0, 1.0, *TEMPERATURES):
                for token, told in found[heat].items():
                    told.append(list(await scorer.score((*PROMPT[:3], token), heat))[-1])
        fine(f"scores of a run in {dtype}", torch.tensor(given[1:], dtype=torch.float32))
        _ratios(bench, f"scores of a run in {dtype}", found)


@check("infer.precision.temperature", level=Level.SINGLE, law=1, spec=SPEC)
async def temperature(bench: InferBench) -> None:
    """Logits are divided by the temperature in float32 whatever the dtype of the run: ratios of tokens tell.

    What one token has over another at a temperature, times the temperature, is what it has at 1.
    """
    seeds = bench.target.claimed("sampling.seed")
    for dtype in bench.target.adapter.dtypes:
        found: _Found = {heat: {} for heat in (1.0, *TEMPERATURES)}
        async with bench.engine(dtype=dtype) as engine:
            await bench.generate(
                engine, bench.ask(*PROMPT[:3], max_new_tokens=1)
            )  # a prefix may be cached from here on
            for heat, told in found.items():
                for seed in range(DRAWS):
                    request = bench.ask(*PROMPT[:3], temperature=heat, max_new_tokens=1, seed=seed if seeds else None)
                    result = await bench.generate(engine, request)
                    told.setdefault(result.output_ids[0], []).append(result.logprobs[0])
        _ratios(bench, f"log-probs of a run in {dtype}", found)


_Found = dict[float, dict[int, list[float]]]
"""Temperature -> token -> its log-probs behind one prompt, each of another request."""


def _ratios(bench: InferBench, what: str, found: _Found) -> None:
    """Expect log-probs of tokens behind one prompt, by temperature, to be those of one set of logits.

    Kernels may give a prompt other bits in another request: how far those at 1 are apart is allowed, too.
    """
    spread = max(max(told) - min(told) for told in found[1.0].values())
    first_of = {heat: {token: told[0] for token, told in tokens.items()} for heat, tokens in found.items()}
    plain = first_of[1.0]
    allowed = max(bench.tolerance(atol=RATIO).atol, 4 * spread)
    for heat in TEMPERATURES:
        there = first_of[heat]
        both = sorted(plain.keys() & there.keys())
        if len(both) < 2:
            raise Inconclusive(f"{what}: {DRAWS} draws at temperatures 1 and {heat} have {len(both)} tokens in common")
        first = both[0]
        errors = [abs((there[token] - there[first]) * heat - (plain[token] - plain[first])) for token in both[1:]]
        bench.numbers[f"{what}, at {heat}"] = max(errors)
        told = f"{what}: at temperature {heat} ratios of {len(both)} tokens are off by {max(errors):.2g}"
        expect(max(errors) <= allowed, f"{told} from those at 1, at most {allowed:g}: logits were rounded")


@check("infer.precision.places", level=Level.SINGLE, law=1, spec=SPEC)
async def places(bench: InferBench) -> None:
    """Far from the beginning neighbours are told apart as near it, in a run of every dtype: their places are exact."""
    draw = random.Random(19)
    folder = looking_back(bench.model(**SHAPE), bench.folder / "model")
    asked = bench.asks([[draw.randrange(2, TOKENS) for _ in range(length)] for length in FAR], max_new_tokens=4)
    for dtype in bench.target.adapter.dtypes:
        async with bench.engine(model=folder, dtype=dtype, fresh=True) as engine:
            results = await bench.together(engine, asked)
        for request, result in zip(asked, results, strict=True):
            well_formed(result, request)
            due = (*request.input_ids[-2:], *request.input_ids[-2:])
            told = f"in {dtype}, after {len(request.input_ids)} tokens, the token before the last is the next one"
            expect(result.output_ids == due, f"{told}: {due} were expected, {result.output_ids} came")
            expect(min(result.logprobs) > UNSURE, f"{told}: its log-probs are {result.logprobs}")
