"""What holds for a few tokens holds for many: long prompts, long outputs, many requests at once, long streams.

Knows: lengths and crowds beyond the round numbers that buffers, blocks and tables grow at.
Does not know: what is asked of single tokens (`sampling`, `integrity`).
"""

from __future__ import annotations

import random

import torch

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import IMPROBABLE
from areal_conformance.checks.infer.sampling_ends import END
from areal_conformance.oracles.infer_judging import VOCABULARY, expect_policies, well_formed
from areal_conformance.oracles.sampling import improbability
from areal_conformance.outcome import expect
from areal_torch.testing.serving import FolderWeights

STREAM = 200
"""Random numbers looked at of each request."""
OVERLAP = 40
"""Pairs of tokens compared at the longest distance. Half of 40 agree by chance with probability below 1e-25."""


@check("infer.output.long", level=Level.SINGLE, law=1, spec="infer#generate")
async def long(bench: InferBench) -> None:
    """Far from the beginning, of a long output or after a long prompt, log-probs are the policy's as near it."""
    chosen = random.Random(41)
    lengths = ((3, 260), (140, 20), (250, 12), (508, 8), (1023, 2))
    async with bench.engine() as engine:
        asked = [
            bench.ask(
                *(chosen.randrange(2, VOCABULARY) for _ in range(prompt)),
                name=f"{prompt}+{output}",
                temperature=1.0,
                max_new_tokens=output,
                **bench.seeded(prompt),
            )
            for prompt, output in lengths
        ]
        results = await bench.together(engine, asked)
    expect_policies(bench, zip(results, asked, strict=True))
    for result, (prompt, output) in zip(results, lengths, strict=True):
        got = len(result.output_ids)
        expect(got == output, f"{output} tokens after a prompt of {prompt} were asked for, {got} came")


@check("infer.sampling.stream", level=Level.SINGLE, law=1, spec="infer#sampling")
async def stream(bench: InferBench) -> None:
    """The random numbers of a request repeat neither themselves nor another request's, and are uniform throughout."""
    folder = bench.model(layers=1)
    async with bench.engine(model=folder) as engine:
        await bench.update(engine, even(bench.weights(folder)))
        shared = [(5, 9, last) for last in (7, 8, 1000 % VOCABULARY)]
        asked = bench.asks(shared, temperature=1.0, max_new_tokens=STREAM, seed=7)
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        well_formed(result, request)
    rows = [result.output_ids for result in results]
    for one, left in enumerate(rows):
        for two, right in enumerate(rows):
            for lag in range(one == two, STREAM - OVERLAP):
                alike = sum(a == b for a, b in zip(left[lag:], right, strict=False))
                pairs = STREAM - lag
                told = f"{alike} of {pairs} tokens of request {one} are those of request {two} {lag} places before"
                expect(alike < pairs / 2, f"every token is equally likely, yet {told}: random numbers are used twice")
    likely = torch.full((VOCABULARY,), 1.0 / (VOCABULARY - 1), dtype=torch.float64)
    likely[END] = 0.0
    half = STREAM // 2
    for told, drawn in (("first", [row[:half] for row in rows]), ("second", [row[half:] for row in rows])):
        tokens = [token // 8 for row in drawn for token in row]
        shares = likely.view(-1, 8).sum(-1)
        chance = improbability(tokens, shares.log())
        expect(
            chance > IMPROBABLE,
            f"every token is equally likely; the {told} {half} of each request come, eight tokens at a time, "
            f"{[tokens.count(eighth) for eighth in range(8)]} times, which has a chance of {chance:.1e}",
        )


def even(weights: FolderWeights) -> FolderWeights:
    """Return weights under which every token but the end token is equally likely, whatever came before."""
    told = weights.tell(END)
    head = told.tensors["lm_head.weight"]
    head[END] = -2.0  # the hidden numbers are all 1: a logit of -2 times their number
    return told
