"""Stop strings are matched whole: all of a long one, and also where the minimum length falls inside.

Knows: greedy paths without stop strings as the truth, and texts that differ from them in one place.
Does not know: short strings and prior tokens (`sampling_ends`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling_ends import LENGTH, PATHS, _ask_and_expect, _path, _text_ends
from areal_conformance.outcome import Inconclusive
from areal_core.contract.data import StopReason

if TYPE_CHECKING:
    from areal_conformance.benches.infer import InferBench

LONG_ONES = (9, 12, 15, 20)
NEVER = "\u00e9"
"""A letter that no token of the tiny models holds."""


@check(
    "infer.sampling.stop_strings_long",
    level=Level.SINGLE,
    law=1,
    spec="infer#sampling",
    requires=("sampling.stop_strings",),
)
async def stop_strings_long(bench: InferBench) -> None:
    """A long stop string ends an output where all of it is there; one that differs in any place does not."""
    num_tried = 0
    async with bench.engine("sampling.stop_strings") as engine:
        for prompt in PATHS:
            path = await _path(bench, engine, prompt)
            ends = _text_ends(bench, path)
            for size in LONG_ONES:
                text = ends[-2][-size:]
                place = next(count for count in range(1, len(ends)) if text in ends[count])
                near = tuple(text[:at] + NEVER + text[at + 1 :] for at in (0, 1, size // 2, size - 2, size - 1))
                if len(text) < size:
                    continue
                num_tried += 1
                await _ask_and_expect(bench, engine, prompt, path, StopReason.LENGTH, stop=near)
                for stop in ((text,), (*near, text), ("@never@", text, NEVER)):
                    await _ask_and_expect(bench, engine, prompt, path[:place], StopReason.STOP, stop=stop)
    if not num_tried:
        raise Inconclusive(f"no greedy path of {LENGTH} tokens has {LONG_ONES[0]} letters")


@check(
    "infer.sampling.stop_strings_across_min",
    level=Level.SINGLE,
    law=1,
    spec="infer#sampling",
    requires=("sampling.stop_strings", "sampling.min_tokens"),
)
async def stop_strings_across_min(bench: InferBench) -> None:
    """A stop string that begins before min_new_tokens and is complete after it ends the output there."""
    num_tried = 0
    async with bench.engine("sampling.stop_strings", "sampling.min_tokens") as engine:
        for prompt in PATHS:
            path = await _path(bench, engine, prompt)
            ends = _text_ends(bench, path)
            for least, before, after in ((3, 1, 1), (4, 3, 2), (6, 2, 1), (8, 6, 4), (12, 11, 3)):
                text, place = ends[least + after][len(ends[least - before]) :], least + after
                if not text or text in ends[place - 1]:
                    continue
                num_tried += 1
                asked = {"stop": (text,), "min_new_tokens": least}
                await _ask_and_expect(bench, engine, prompt, path[:place], StopReason.STOP, **asked)
                prior = least // 2
                asked = {**asked, "num_prior": prior, "max_new_tokens": LENGTH - prior}
                given = (*prompt, *path[:prior])
                await _ask_and_expect(bench, engine, given, path[prior:place], StopReason.STOP, **asked)
    if not num_tried:
        raise Inconclusive("no greedy path has a string that first comes across a minimum length")
