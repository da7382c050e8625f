"""Tokens that are equally probable: greedy decoding takes one of them, the same alone, again and beside others.

Knows: weights under which tokens tie whatever came before, exactly or but for the last bits of a logit.
Does not know: which of them an engine takes, or engines that are to be the same to the last bit (`sampling_seeds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, Row, family
from areal_conformance.oracles.infer_judging import VOCABULARY, expect_drawn, prompts, well_formed
from areal_conformance.outcome import expect
from areal_torch.testing.serving import FolderWeights

TIED = (7, 22, 41, 62)
BEST, REST = 2.0**-6, -2.0
"""Logits of those tokens and of all others."""
NEARLY = 2.0**-22
"""By what part the last of them is ahead: a logit of float32 tells, and a probability does not."""
DETERMINISTIC = ("deterministic",)


def tying(weights: FolderWeights, ahead: float) -> FolderWeights:
    """Return weights under which those tokens tie whatever came before, but for the last, which may be ahead.

    Each logit is a single product, so that no order of summation parts them.
    """
    told = weights.tell(TIED[0])
    told.tensors["lm_head.weight"].zero_()[:, 0] = logits_of(ahead)
    return told


def logits_of(ahead: float) -> Tensor:
    """Return the logits [V] of every place."""
    logits = torch.full((VOCABULARY,), REST)
    logits[list(TIED)] = BEST
    logits[TIED[-1]] *= 1.0 + ahead
    return logits


@family(
    "infer.{mode}.ties",
    {
        "concurrent": Row("Of tokens that tie", ((), 0.0)),
        "deterministic": Row(
            "In deterministic mode, of tokens that nearly tie", (DETERMINISTIC, NEARLY), requires=DETERMINISTIC, law=3
        ),
    },
    level=Level.SINGLE,
    law=1,
    spec="infer#sampling",
)
async def ties(bench: InferBench, case: tuple[Sequence[str], float]) -> None:
    """{...} a greedy request gets one, the same alone, again, beside other greedy ones and among sampled ones."""
    mode, ahead = case
    async with bench.engine(*mode) as engine:
        await bench.update(engine, tying(bench.weights(), ahead))
        requests = bench.asks(prompts(6, seed=21), max_new_tokens=lambda number: 6 + 5 * number)
        alone = [await bench.generate(engine, request) for request in requests]
        again = [await bench.generate(engine, request) for request in reversed(requests)][::-1]
        together = await bench.together(engine, requests)
        beside = bench.asks(
            prompts(7, seed=22, longest=90),
            name="c",
            temperature=[1.0, 0.7],
            max_new_tokens=lambda number: 3 + 5 * number,
        )
        crowd = bench.start(engine, beside)
        among = (await bench.together(engine, reversed(requests)))[::-1]
        await bench.results(crowd)
    ways = {"alone": alone, "again": again, "beside greedy ones": together, "among sampled ones": among}
    for way, results in ways.items():
        for request, first, result in zip(requests, alone, results, strict=True):
            told = f"request {request.request_id!r}, {way}"
            well_formed(result, request)
            expect_drawn(bench, result, logits_of(ahead).expand(len(result.output_ids), -1), 0.0, told)
            expect(result.output_ids == first.output_ids, f"{told}: {result.output_ids}, alone {first.output_ids}")
