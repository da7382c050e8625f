"""Level 5 of an inference engine: figures, told and not judged unless the adapter promises some (`Adapter.promises`).

Knows: a stated size, transformers' `generate` beside the engine, medians of turns.
Does not know: what a good figure is.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import torch

from areal_conformance.benches.infer import InferBench
from areal_conformance.benches.measuring import awaited_in_turns, peak_memory
from areal_conformance.check import Level, check
from areal_conformance.oracles.plain import PlainGenerator
from areal_core.contract.inference import InferenceEngine

GENERATE = "infer#areal_core.contract.inference.InferenceEngine.generate"
WEIGHTS, PRECISION = "infer#weights", "infer#precision"
SIZE: dict[str, Any] = {"hidden": 128, "layers": 4, "vocab_size": 2048, "max_position": 512}
"""Arguments of `make_tiny_model`. Any: each has its own type."""
PROMPTS = tuple(tuple(2 + (7 * row + 11 * place) % 2040 for place in range(16)) for row in range(16))
NEW = 48


@check("infer.numbers.tokens", level=Level.NUMBERS, law=1, spec=GENERATE, deadline_s=600.0)
async def tokens(bench: InferBench) -> None:
    """Tokens a second of 16 requests at once and peak memory, and the tokens over those of transformers' `generate`."""
    folder, device = bench.model(**SIZE), bench.target.locator.device
    plain, numbers = PlainGenerator(folder, dtype=bench.dtype, device=device), itertools.count()
    async with bench.engine(model=folder) as engine:

        async def together() -> None:
            name = f"round{next(numbers)}-"
            requests = bench.asks(PROMPTS, name=name, temperature=1.0, max_new_tokens=NEW)
            await bench.together(engine, requests)

        async def alone() -> None:
            plain.answer(PROMPTS, NEW)

        with peak_memory(device) as peak:
            await together()
        seconds = await awaited_in_turns({"engine": together, "plain": alone})
    bench.tell("tokens generated a second", len(PROMPTS) * NEW / seconds["engine"])
    bench.tell("tokens a second / those of a plain generate", seconds["plain"] / seconds["engine"])
    bench.tell("peak memory of generation, MB", peak.megabytes)


@check("infer.numbers.update", level=Level.NUMBERS, law=3, spec=WEIGHTS, deadline_s=600.0)
async def update(bench: InferBench) -> None:
    """Seconds from the first byte of new weights until they serve, and those of a plain copy of the bytes over them."""
    folder = bench.model(**SIZE)
    weights = bench.weights(folder)
    async with bench.engine(model=folder) as engine:

        async def copied() -> None:
            [tensor.clone() for tensor in weights.tensors.values()]

        seconds = await awaited_in_turns({"engine": lambda: bench.update(engine, weights), "copy": copied})
    bench.tell("seconds of an update", seconds["engine"])
    bench.tell("plain copy / update", seconds["copy"] / seconds["engine"])


@check("infer.numbers.logprobs", level=Level.NUMBERS, law=1, spec=PRECISION, deadline_s=600.0)
async def logprobs(bench: InferBench) -> None:
    """How far log-probs are from the float32 truth, on average and at worst, in every dtype the backend has."""
    folder = bench.model(**SIZE)
    for dtype in bench.target.adapter.dtypes:
        async with bench.engine(model=folder, dtype=dtype) as engine:
            gaps = torch.cat(await asyncio.gather(*(_gap(bench, engine, row) for row in range(4))))
        bench.tell(f"log-prob gap of generation in {dtype}, mean", float(gaps.mean()))
        bench.tell(f"log-prob gap of generation in {dtype}, most", float(gaps.max()))


async def _gap(bench: InferBench, engine: InferenceEngine, row: int) -> torch.Tensor:
    request = bench.ask(*PROMPTS[row], name=f"gap{row}", temperature=1.0, max_new_tokens=NEW)
    result = await bench.generate(engine, request)
    wanted = bench.oracle(bench.model(**SIZE)).logprobs(PROMPTS[row], result.output_ids)
    return (torch.tensor(result.logprobs, dtype=torch.float64) - wanted.double()).abs()
