"""Stop strings are matched whole: all of a long one, and also where the minimum length falls inside.

Knows: greedy paths without stop strings as the truth, and texts that differ from them in one place.
Does not know: short strings and prior tokens (`sampling_ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling_ends import LENGTH, PATHS, _expect_end, _path, _text_ends
from areal_conformance.outcome import Inconclusive
from areal_core.contract.data import StopReason
from areal_core.contract.inference import InferenceEngine

Case = tuple[tuple[int, ...], dict[str, Any], tuple[int, ...], StopReason]
"""Prompt, what is asked besides, the output expected and why it ends. Any: fields of SamplingParams."""

LONG_ONES = (9, 12, 15, 20)
NEVER = "\u00e9"
"""A letter that no token of the tiny models holds."""
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#sampling")


async def end_as_told(bench: InferBench, engine: InferenceEngine, cases: Sequence[Case]) -> None:
    """Ask all at once and expect every output and its end."""
    asked = [
        bench.ask(*prompt, name=f"r{number}", **{"max_new_tokens": LENGTH, **given})
        for number, (prompt, given, _, _) in enumerate(cases)
    ]
    results = await bench.together(engine, asked)
    for result, request, (_, _, wanted, reason) in zip(results, asked, cases, strict=True):
        _expect_end(result, request, wanted, reason)


@rule("infer.sampling.stop_strings_long", requires=("sampling.stop_strings",))
async def stop_strings_long(bench: InferBench) -> None:
    """A long stop string ends an output where all of it is there; one that differs in any place does not."""
    async with bench.engine("sampling.stop_strings") as engine:
        cases: list[Case] = []
        for number, prompt in enumerate(PATHS):
            path = await _path(bench, engine, prompt)
            ends = _text_ends(bench, path)
            for size in (LONG_ONES[number], LONG_ONES[-1 - number]):
                text = ends[-2][-size:]
                if len(text) < size:
                    continue
                place = next(count for count in range(1, len(ends)) if text in ends[count])
                near = tuple(text[:at] + NEVER + text[at + 1 :] for at in (0, 1, size // 2, size - 2, size - 1))
                cases.append((prompt, {"stop": near}, path, StopReason.LENGTH))
                cases += [(prompt, {"stop": stop}, path[:place], StopReason.STOP) for stop in ((text,), (*near, text))]
        if not cases:
            raise Inconclusive(f"no greedy path of {LENGTH} tokens has {LONG_ONES[0]} letters")
        await end_as_told(bench, engine, cases)


@rule("infer.sampling.stop_strings_across_min", requires=("sampling.stop_strings", "sampling.min_tokens"))
async def stop_strings_across_min(bench: InferBench) -> None:
    """A stop string that begins before min_new_tokens and is complete after it ends the output there."""
    async with bench.engine("sampling.stop_strings", "sampling.min_tokens") as engine:
        cases: list[Case] = []
        for prompt in PATHS:
            path = await _path(bench, engine, prompt)
            ends = _text_ends(bench, path)
            for least, before, after in ((3, 1, 1), (4, 3, 2), (6, 2, 1), (8, 6, 4), (12, 11, 3)):
                text, place = ends[least + after][len(ends[least - before]) :], least + after
                if not text or text in ends[place - 1]:
                    continue
                asked = {"stop": (text,), "min_new_tokens": least}
                cases.append((prompt, asked, path[:place], StopReason.STOP))
                prior = least // 2
                asked = {**asked, "num_prior": prior, "max_new_tokens": LENGTH - prior}
                cases.append(((*prompt, *path[:prior]), asked, path[prior:place], StopReason.STOP))
        if not cases:
            raise Inconclusive("no greedy path has a string that first comes across a minimum length")
        await end_as_told(bench, engine, cases)
