"""Stop strings with tokenizers unlike the suite's own: an output ends with the token that completes its text.

Knows: byte-level and SentencePiece tokenizers of 64 ids (`probes.spellings`).
Does not know: how an engine looks for a string.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, family
from areal_conformance.checks.infer.sampling_ends import LENGTH, PATHS, ask_and_expect, path_of, stopped, text_ends
from areal_conformance.outcome import Inconclusive
from areal_conformance.probes.spellings import SPELLINGS, Pairs
from areal_core.contract.data import StopReason

_HALF = "\ufffd"
_UNKNOWN = 2
_MOST_PAIRS = 4
_TRIES = 200


def _pairs(draw: random.Random, met: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return some pairs of tokens that follow each other somewhere, no token in two pairs, and no special one."""
    found: list[tuple[int, int]] = []
    for pair in draw.sample(met, len(met)):
        if len({*pair, *chain(*found)}) == 2 + 2 * len(found) and min(pair) > _UNKNOWN:
            found.append(pair)
    return found[: draw.randint(1, _MOST_PAIRS)]


def _spelling(make: Callable[[Pairs], Any], paths: Sequence[Sequence[int]]) -> Any:  # Any: transformers' tokenizer
    """Return of many tokenizers the one that spells most letters of two tokens in these paths.

    Where bytes stand side by side that are no letters, some tokenizers spell none of them.
    """
    draw, met = random.Random(3), sorted({pair for path in paths for pair in pairwise(path)})

    def num_letters(made: Any) -> int:
        texts = (made.decode(list(path), skip_special_tokens=False) for path in paths)
        return sum(_is_letter(letter) for text in texts for letter in text)

    return max((make(_pairs(draw, met)) for _ in range(_TRIES)), key=num_letters)


def _is_letter(letter: str) -> bool:
    return not letter.isascii() and letter != _HALF


def _strings(draw: random.Random, text: str) -> list[str]:
    """Return strings of a text that are whole: two from anywhere, and what ends with each letter of two bytes."""
    letters = [place + 1 for place, letter in enumerate(text) if _is_letter(letter)]
    ends = [*(draw.randrange(1, max(2, len(text))) for _ in range(2)), *letters]
    found = [text[max(0, end - draw.randint(1, 4)) : end].rpartition(_HALF)[2] for end in ends]
    return [string for string in found if string]


@family(
    "infer.sampling.stop_spelled.{tokenizer}",
    SPELLINGS,
    level=Level.SINGLE,
    law=1,
    spec="infer#sampling",
    requires=("sampling.stop_strings",),
)
async def spelled(bench: InferBench, tokenizer: Callable[[Pairs], Any]) -> None:
    """As {tokenizer} spells it, a stop string ends an output: part of a token, of several, letters of two tokens."""
    if bench.target.adapter.models[0] == "qwen2":
        raise Inconclusive("beside a qwen2 model any tokenizer is read as a byte-level one")
    model = bench.folder / "model"
    shutil.copytree(bench.model(), model)
    for old in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (model / old).unlink(missing_ok=True)
    paths = [bench.oracle().greedy(prompt, LENGTH) for prompt in PATHS]
    _spelling(tokenizer, paths).save_pretrained(model)
    draw, num_tried, num_letters = random.Random(5), 0, 0
    async with bench.engine("sampling.stop_strings", model=model, fresh=True) as engine:
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path, model)
            for string in _strings(draw, ends[-1]):
                wanted, reason = stopped(ends, path, [string])
                if reason is StopReason.STOP:
                    await ask_and_expect(bench, engine, prompt, wanted, reason, stop=("@never@", string))
                    num_tried += 1
                    num_letters += not string.isascii()
    if not num_tried or not num_letters:
        told = f"{num_tried} strings to stop at, {num_letters} of them with a letter of two tokens"
        raise Inconclusive(f"the greedy paths gave {told}")
    bench.numbers["strings"] = num_tried
