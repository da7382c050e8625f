"""Numbers of a request beyond their range are refused, with a typed error; those at its ends are served as they say.

Knows: the ranges of `SamplingParams`, and what prior tokens there can be.
Does not know: what the numbers between mean (`sampling`, `sampling_ends`, `sampling_penalties`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import attrs

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import hot, judge_output
from areal_conformance.oracles.infer_judging import expect_answered, expect_policy, raises
from areal_conformance.outcome import expect
from areal_core.contract.abilities import asked_of_sampling
from areal_core.contract.errors import ArealError

BEYOND: tuple[dict[str, Any], ...] = (
    *({"temperature": heat} for heat in (-1e-3, -1.0, math.inf, math.nan)),
    *({"max_new_tokens": count} for count in (0, -1)),
    {"min_new_tokens": -1},
    {"top_k": -1},
    *({"top_p": share} for share in (0.0, -0.5, 1.001, math.nan)),
    *({"min_p": share} for share in (-0.001, 1.001, math.nan)),
    *({name: number} for name in ("frequency_penalty", "presence_penalty") for number in (-2.001, 2.001, math.nan)),
    *({"repetition_penalty": number} for number in (0.0, -1.0, 2.001, math.nan)),
    *({"stop": strings} for strings in (("",), ("@never@", ""))),
)
"""Fields of SamplingParams, each beyond its range. Any: numbers and texts."""
ENDS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("", {"temperature": heat}) for heat in (0.0, 0.02, 4.0)),
    ("", {"max_new_tokens": 1}),
    ("min_tokens", {"min_new_tokens": 1}),
    ("top_k", {"top_k": 1}),
    *(("top_p", {"top_p": share}) for share in (1e-4, 1.0)),
    *(("min_p", {"min_p": share}) for share in (1.0, 0.0)),
    *(("penalties", {name: end}) for name in ("frequency_penalty", "presence_penalty") for end in (-2.0, 2.0)),
    *(("repetition_penalty", {"repetition_penalty": end}) for end in (0.1, 2.0)),
)
"""Ability -> what is still within its range. Any: numbers."""
rule = partial(check, level=Level.SINGLE, spec="infer#sampling")


@rule("infer.range.beyond", law=5)
async def beyond(bench: InferBench) -> None:
    """A number beyond its range is refused by the name of its field, or of the ability it takes; nobody is harmed."""
    async with bench.engine() as engine:
        beside = bench.ask(5, 9, name="beside", max_new_tokens=60)
        call = bench.call(engine.generate(beside))
        plain = bench.ask(5, 9, 7, temperature=1.0, max_new_tokens=4)
        for given in BEYOND:
            asked = attrs.evolve(plain, sampling=attrs.evolve(plain.sampling, **given))
            error = await raises(ArealError, partial(engine.generate, asked), f"generate with {given}")
            plainly = asked_of_sampling(plain.sampling)
            named = (*given, *(word for word in asked_of_sampling(asked.sampling) if word not in plainly))
            told = f"generate with {given} is refused without one of the words {', '.join(named)}: {error}"
            expect(any(name in str(error) for name in named), told)
        for prior in (-1, len(plain.input_ids), len(plain.input_ids) + 1):
            asked = attrs.evolve(plain, num_prior=prior)
            told = f"{prior} prior tokens of the {len(plain.input_ids)} of a request"
            await raises(ArealError, partial(engine.generate, asked), told)
        expect_policy(bench, (await bench.results([call]))[0], beside)
        await expect_answered(bench, engine, bench.ask(6, 9, name="later"))
        status = await engine.status()
        expect(status.num_running == status.num_waiting == 0, f"refused requests must not linger: {status}")


@rule("infer.range.ends", law=1)
async def ends(bench: InferBench) -> None:
    """A number at the end of its range is served as what it says, side by side with all the others."""
    cases = [given for ability, given in ENDS if not ability or bench.target.claimed(f"sampling.{ability}")]
    async with bench.engine() as engine:
        asked = [
            bench.ask(5, 9, 7, name=f"{number}", **{"max_new_tokens": 8, **hot(given)}, **bench.seeded(number))
            for number, given in enumerate(cases)
        ]
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        judge_output(bench, request, result, forbidden=(1,), until=request.sampling.min_new_tokens)
        count, due = len(result.output_ids), request.sampling.max_new_tokens
        expect(count == due, f"{cases[int(request.request_id)]}: {due} tokens were asked for, {count} came")
