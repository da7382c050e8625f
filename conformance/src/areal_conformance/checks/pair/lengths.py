"""The gap does not depend on how long a sequence is, nor on how many others run beside it.

Knows: lengths from one token to most of the context.
Does not know: how either side cuts, pads or buckets them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from areal_conformance.benches.infer_truth import Oracle
from areal_conformance.benches.pair import PairBench
from areal_conformance.benches.pair_models import sharpen
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import LOOSE
from areal_conformance.outcome import expect
from areal_core.contract.inference import Generation

SHAPES = ((60, 130), (1, 200), (33, 64), (121, 120), (17, 15), (64, 100), (90, 31))
"""Tokens of the prompt, tokens generated: together from 32 to nearly all of the context."""
ATOL = 3e-4
"""In float32. Sums over 250 tokens differ by a hundredth of it."""


def prompts() -> list[tuple[int, ...]]:
    """Return prompts of these lengths, all different from their first tokens on."""
    drawn = random.Random(11)
    return [tuple(drawn.randrange(2, 62) for _ in range(length)) for length, _ in SHAPES]


@check("pair.gap.lengths", level=Level.LOOP, law=1, spec="train", deadline_s=180.0)
async def lengths(bench: PairBench) -> None:
    """At any length, to the end of the context and many at once, both sides give each token the same log-prob."""
    single = bench.train.adapter.dtypes[0] == bench.infer.adapter.dtypes[0] == "float32"
    allowed = bench.tolerance(atol=ATOL if single else LOOSE).atol
    async with bench.pair(model=_sharp(bench), lr=0.003) as pair:
        await pair.step(pair.batch(await pair.generate(temperature=1.0)))
        await pair.update()
        saved, asked = await pair.saved(bench.folder / "saved"), prompts()
        made = await asyncio.gather(
            *(
                pair.generate((ids,), temperature=1.0, max_new_tokens=wanted)
                for ids, (_, wanted) in zip(asked, SHAPES, strict=True)
            )
        )
        generations = [generation for (generation,) in made]
        for number, (generation, (_, wanted)) in enumerate(zip(generations, SHAPES, strict=True)):
            got = len(generation.output_ids)
            expect(got == wanted, f"request {number} was to have {wanted} tokens and has {got}")
        trained = (await pair.logprobs(pair.batch(generations, asked))).tolist()
        truth = _truth(saved, asked, generations)
        for name, told in (("the trainer", trained), ("the float32 truth of its weights", truth)):
            bench.numbers[f"gap to {name}"] = _judge(asked, generations, told, allowed, f"beside {name}")


def _sharp(bench: PairBench) -> Path:
    """Return the tiny model with decided attention, made once."""
    folder = bench.shared_folder / "sharp"
    if not folder.exists():
        shutil.copytree(bench.model(hidden=64), folder)
        sharpen(folder)
    return folder


def _truth(saved: Path, asked: Sequence[Sequence[int]], generations: Sequence[Generation]) -> list[float]:
    oracle, told = Oracle(saved), list[float]()
    for prompt, generation in zip(asked, generations, strict=True):
        told += oracle.logprobs(prompt, generation.output_ids).tolist()
    return told


def _judge(
    asked: Sequence[Sequence[int]], generations: Sequence[Generation], told: Sequence[float], allowed: float, when: str
) -> float:
    """Compare sampled log-probs with those told, token by token; return the largest difference."""
    count, worst = sum(len(generation.output_ids) for generation in generations), 0.0
    expect(len(told) == count, f"{when}: {count} tokens were sampled, {len(told)} log-probs are told")
    start = 0
    for prompt, generation in zip(asked, generations, strict=True):
        stop = start + len(generation.output_ids)
        gaps = [abs(one - other) for one, other in zip(generation.logprobs, told[start:stop], strict=True)]
        off = [place for place, difference in enumerate(gaps) if not difference <= allowed]
        place = off[0] if off else 0
        expect(
            not off,
            f"{when}: of a request with {len(prompt)} prompt tokens, {len(off)} of {len(gaps)} generated tokens differ "
            f"by more than {allowed:g} in their log-prob; the first is token {len(prompt) + place} of the sequence, "
            f"sampled with {generation.logprobs[place]:.5f}, told as {told[start + place]:.5f}",
        )
        start, worst = stop, max(worst, *gaps)
    return worst
