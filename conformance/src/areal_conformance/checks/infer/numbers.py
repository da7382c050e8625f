"""Level 5 of an inference engine: figures, told and not judged unless the adapter promises some or the run bounds them.

Knows: a stated size, transformers' `generate` beside the engine, medians of turns.
Does not know: what a good figure is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import torch

from areal_conformance.benches.infer import InferBench
from areal_conformance.benches.measuring import LIVES, awaited_grown_in_turns, awaited_in_turns, peak_memory
from areal_conformance.check import Level, check
from areal_conformance.oracles.plain import PlainGenerator
from areal_core.contract.inference import Generation, InferenceEngine

GENERATE = "infer#areal_core.contract.inference.InferenceEngine.generate"
WEIGHTS, PRECISION = "infer#weights", "infer#precision"
SIZE: dict[str, Any] = {"hidden": 128, "layers": 4, "vocab_size": 2048, "max_position": 512}
"""Arguments of `make_tiny_model`. Any: each has its own type."""
PROMPTS = tuple(tuple(2 + (7 * row + 11 * place) % 2040 for place in range(16)) for row in range(16))
NEW = 48
RATE = "tokens generated a second"
RATE_RATIO = "tokens a second / those of a plain generate"
PEAK = "peak memory of generation, MB"
MEMORY_RATIO = "memory of generation / that of a plain generate"
UPDATE = "seconds of an update"
UPDATE_RATIO = "plain copy / update"
GAP = "log-prob gap of generation in {dtype}"
MEAN, MOST, GAP_RATIO = f"{GAP}, mean", f"{GAP}, most", f"{GAP} / that of a plain forward"


@check(
    "infer.numbers.tokens",
    level=Level.NUMBERS,
    law=1,
    spec=GENERATE,
    deadline_s=900.0,
    figures=(RATE, RATE_RATIO, PEAK, MEMORY_RATIO),
)
async def tokens(bench: InferBench) -> None:
    """Tokens a second of 16 requests at once and peak memory, both also beside those of transformers' `generate`."""
    numbers = itertools.count()

    async def together(engine: InferenceEngine) -> None:
        name = f"round{next(numbers)}-"
        requests = bench.asks(PROMPTS, name=name, temperature=1.0, max_new_tokens=NEW)
        await bench.together(engine, requests)

    seconds, peak = await _timed(bench, together)
    grown = await _grown(bench, together)
    bench.tell(RATE, len(PROMPTS) * NEW / seconds["engine"])
    bench.tell(RATE_RATIO, seconds["plain"] / seconds["engine"])
    bench.tell(PEAK, peak)
    if grown["engine"] and grown["plain"]:  # a server in a process of its own has a device's memory to itself
        bench.tell(MEMORY_RATIO, grown["engine"] / grown["plain"])


Together = Callable[[InferenceEngine], Awaitable[None]]


async def _timed(bench: InferBench, together: Together) -> tuple[dict[str, float], float]:
    """Return the seconds of all requests at once, of engine and plain loop, and the megabytes held in the engine's."""
    folder, device = bench.model(**SIZE), bench.target.locator.device
    async with bench.engine(model=folder) as engine:
        plain = PlainGenerator(folder, dtype=bench.dtype, device=device)

        async def alone() -> None:
            plain.answer(PROMPTS, NEW)

        with peak_memory(device) as peak:
            await together(engine)
        seconds = await awaited_in_turns({"engine": lambda: together(engine), "plain": alone})
    return seconds, peak.megabytes


async def _grown(bench: InferBench, together: Together) -> dict[str, float]:
    """Return the bytes that the life of an engine and of a plain model add to what is there without them."""
    folder, device = bench.model(**SIZE), bench.target.locator.device

    async def served() -> None:
        async with bench.engine(model=folder, fresh=True) as engine:
            await together(engine)

    async def served_plainly() -> None:
        PlainGenerator(folder, dtype=bench.dtype, device=device).answer(PROMPTS, NEW)

    lives = {"engine": served, "plain": served_plainly}
    return await awaited_grown_in_turns(device, lives, repeats=1 if bench.target.adapter.slow_start else LIVES)


@check(
    "infer.numbers.update",
    level=Level.NUMBERS,
    law=3,
    spec=WEIGHTS,
    deadline_s=600.0,
    figures=(UPDATE, UPDATE_RATIO),
)
async def update(bench: InferBench) -> None:
    """Seconds from the first byte of new weights until they serve, and those of a plain copy of the bytes over them."""
    folder = bench.model(**SIZE)
    weights = bench.weights(folder)
    async with bench.engine(model=folder) as engine:

        async def copied() -> None:
            [tensor.clone() for tensor in weights.tensors.values()]

        seconds = await awaited_in_turns({"engine": lambda: bench.update(engine, weights), "copy": copied})
    bench.tell(UPDATE, seconds["engine"])
    bench.tell(UPDATE_RATIO, seconds["copy"] / seconds["engine"])


@check(
    "infer.numbers.logprobs",
    level=Level.NUMBERS,
    law=1,
    spec=PRECISION,
    deadline_s=600.0,
    figures=(MEAN, MOST, GAP_RATIO),
)
async def logprobs(bench: InferBench) -> None:
    """How far log-probs are from the float64 truth in every dtype the backend has, also beside a plain forward's."""
    folder, device = bench.model(**SIZE), bench.target.locator.device
    truth = PlainGenerator(folder, dtype="float64", device="cpu")
    for dtype in bench.target.adapter.dtypes:
        plain = PlainGenerator(folder, dtype=dtype, device=device)
        async with bench.engine(model=folder, dtype=dtype) as engine:
            answers = await asyncio.gather(*(_answer(bench, engine, row) for row in range(4)))
        gaps, usual = [], []
        for prompt, answer in zip(PROMPTS, answers, strict=False):
            wanted = truth.logprobs(prompt, answer.output_ids)
            gaps.append((torch.tensor(answer.logprobs, dtype=torch.float64) - wanted).abs())
            usual.append((plain.logprobs(prompt, answer.output_ids).double() - wanted).abs())
        mean = float(torch.cat(gaps).mean())
        bench.tell(MEAN.format(dtype=dtype), mean)
        bench.tell(MOST.format(dtype=dtype), float(torch.cat(gaps).max()))
        bench.tell(GAP_RATIO.format(dtype=dtype), mean / float(torch.cat(usual).mean()))


async def _answer(bench: InferBench, engine: InferenceEngine, row: int) -> Generation:
    request = bench.ask(*PROMPTS[row], name=f"gap{row}", temperature=1.0, max_new_tokens=NEW)
    return await bench.generate(engine, request)
