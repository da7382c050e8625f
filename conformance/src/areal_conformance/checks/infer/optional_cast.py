"""Weights of another floating dtype than the one served.

Knows: both directions, mixtures, and the proof that goes with them.
Does not know: updates in general.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import expect_policy, gap, well_formed
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.inference import InferenceEngine
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.weights.fingerprint import fingerprint
from areal_torch.testing.serving import FolderWeights

CAST = ("weights.cast",)
COARSE = 0.2
"""Log-probs of a bfloat16 engine against the float32 truth of its rounded weights, on models of two layers."""


def cast(bench: InferBench, *dtypes: str, seed: int = 21) -> tuple[FolderWeights, FolderWeights]:
    """Return other weights in these dtypes, taking turns, and what they are worth in float32."""
    whole = FolderWeights.of(bench.model(seed=seed))
    sent = {
        name: tensor.to(getattr(torch, dtypes[number % len(dtypes)]))
        for number, (name, tensor) in enumerate(whole.tensors.items())
    }
    worth = {name: tensor.float() for name, tensor in sent.items()}
    return FolderWeights(sent, dict(whole.tied)), FolderWeights(worth, dict(whole.tied))


@define
class _Remembering:
    """An engine whose last receipt can be looked at."""

    engine: Any  # Any: whatever else the engine has passes through
    receipt: Receipt | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Receive, and keep the receipt."""
        self.receipt = await self.engine.receive_weights(source, version)
        return self.receipt


async def proved_update(bench: InferBench, engine: InferenceEngine, sent: FolderWeights) -> None:
    """Update, and expect the receipt to prove the bytes that were sent."""
    watched: Any = _Remembering(engine)
    await bench.update(watched, sent)
    proved = watched.receipt.fingerprints
    for name, tensor in sent.tensors.items():
        expect(
            proved.get(name) == fingerprint(tensor),
            f"the receipt of {name}, sent as {tensor.dtype}, is {proved.get(name)}: not of the bytes that were sent",
        )


@check("infer.cast.bfloat16_sent", level=Level.SINGLE, law=7, spec="infer#weights", requires=CAST)
async def bfloat16_sent(bench: InferBench) -> None:
    """Weights sent in bfloat16, all or some of them, are served at their value; the proof is of the bytes sent."""
    async with bench.engine(*CAST) as engine:
        for dtypes, seed in ((("bfloat16",), 21), (("float32", "bfloat16"), 22), (("float32",), 23)):
            sent, worth = cast(bench, *dtypes, seed=seed)
            await proved_update(bench, engine, sent)
            request = bench.ask(5, 9, 7, name=f"r{seed}", temperature=1.0, max_new_tokens=24)
            result = await engine.generate(request)
            expect_policy(bench, result, request, weights=worth, told=f"after an update in {' and '.join(dtypes)}")


@check("infer.cast.bfloat16_served", level=Level.SINGLE, law=7, spec="infer#weights", requires=CAST)
async def bfloat16_served(bench: InferBench) -> None:
    """An engine that serves bfloat16 takes float32 weights at their rounded value, and proves the bytes that came."""
    if "bfloat16" not in bench.target.adapter.dtypes:
        raise Inconclusive("the adapter names no second dtype that the engine serves")
    async with bench.engine(*CAST, dtype="bfloat16") as engine:
        for dtype, seed in (("float32", 21), ("bfloat16", 22), ("float32", 23)):
            sent, _ = cast(bench, dtype, seed=seed)
            _, rounded = cast(bench, "bfloat16", seed=seed)
            await proved_update(bench, engine, sent)
            request = bench.ask(5, 9, 7, name=f"r{seed}", temperature=1.0, max_new_tokens=24)
            result = await engine.generate(request)
            well_formed(result, request)
            wanted = bench.oracle().logprobs(request.input_ids, result.output_ids, weights=rounded.tensors)
            far = gap(result, wanted)
            expect(far <= COARSE, f"sent in {dtype}, served in bfloat16: log-probs are off by {far:.3f}")
