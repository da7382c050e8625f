"""After a commit every tensor is the one offered, by witness and by what the engine computes, also where it was cast.

Knows: which tensors matter and how to show that each arrived; updates of another floating dtype.
Does not know: versions and phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sources import FailingSource
from areal_conformance.oracles.infer_judging import expect_answered, gap, prompts, raises, well_formed
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.errors import CoverageError
from areal_core.contract.inference import InferenceEngine
from areal_core.weights.tensors import fingerprint
from areal_torch.testing.serving import FolderWeights

DTYPES = ("bfloat16", "float32")
PROMPT = (5, 9, 30, 41, 12, 7, 55, 20)


def nudged(weights: FolderWeights, name: str, *, seed: int = 0) -> FolderWeights:
    """Return weights with one tensor changed a good deal."""
    tensor = weights.tensors[name]
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)).to(tensor)
    return attrs.evolve(weights, tensors={**weights.tensors, name: tensor + 0.5 * tensor.std() * noise + 0.1 * noise})


def other_values(weights: FolderWeights, seen: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors of `weights` that an engine serves with another value."""
    pairs = ((name, tensor.float(), seen[name].float()) for name, tensor in weights.tensors.items())
    return [name for name, offered, served in pairs if fingerprint(offered) != fingerprint(served)]


def in_dtypes(weights: FolderWeights, *dtypes: str) -> FolderWeights:
    """Return weights in these dtypes, taking turns."""
    turns = zip(weights.tensors.items(), itertools.cycle(dtypes), strict=False)
    tensors = {name: tensor.to(getattr(torch, dtype)) for (name, tensor), dtype in turns}
    return FolderWeights(tensors, dict(weights.tied))


async def computes(bench: InferBench, engine: InferenceEngine, folder: Path, weights: FolderWeights, told: str) -> None:
    """Expect an engine to compute with exactly these weights: its log-probs are theirs."""
    request = bench.ask(*PROMPT, temperature=1.0, max_new_tokens=6)
    await expect_answered(bench, engine, request, model=folder, weights=weights, told=told)


@check("infer.weights.every_tensor", level=Level.SINGLE, law=7, spec="infer#weights")
async def every_tensor(bench: InferBench) -> None:
    """A change in any single tensor of the model reaches what the engine computes: norms, biases, head and all."""
    kinds = bench.target.adapter.models
    for kind in dict.fromkeys([kinds[0], *(kind for kind in kinds if kind == "qwen2")]):
        folder = bench.model(kind=kind)
        base = bench.weights(folder)
        async with bench.engine(model=folder) as engine:
            for name in base.tensors:
                changed = nudged(base, name)
                await bench.update(engine, changed)
                await computes(bench, engine, folder, changed, f"{kind}: an update that changed only {name}")


@check("infer.weights.by_witness", level=Level.SINGLE, law=7, spec="infer#weights")
async def by_witness(bench: InferBench) -> None:
    """By another road than the contract's: the tensors served are the ones offered, bit for bit, ties once."""
    for tied in (False, True):
        folder = bench.model(tied=tied)
        async with bench.engine(model=folder) as engine:
            for source in (folder, bench.model(tied=tied, seed=5), folder):
                weights = bench.weights(source)
                await bench.update(engine, weights)
                seen = bench.witness(engine).tensors()
                names = set(seen) ^ set(weights.tensors)
                expect(not names, f"offered and served tensors differ by name: {sorted(names)[:4]}")
                wrong = other_values(weights, seen)
                expect(not wrong, f"{len(wrong)} of {len(seen)} tensors served are not those offered: {wrong[:4]}")


@check("infer.weights.kinds", level=Level.SINGLE, law=7, spec="infer#weights")
async def kinds(bench: InferBench) -> None:
    """An update serves exactly what the new folder holds, for every kind of model, tied and untied."""
    for kind in bench.target.adapter.models:
        for tied in (True, False):
            folder, new = bench.model(kind=kind, tied=tied), bench.model(kind=kind, tied=tied, seed=5)
            async with bench.engine(model=folder) as engine:
                await bench.update(engine, bench.weights(new))
                told = f"{kind}, {'tied' if tied else 'untied'}: after an update"
                for request in bench.asks(prompts(3, seed=8), temperature=1.0):
                    what = f"{told}, request {request.request_id!r}"
                    await expect_answered(bench, engine, request, model=new, told=what)


@check("infer.weights.one_by_one", level=Level.SINGLE, law=7, spec="infer#weights")
async def one_by_one(bench: InferBench) -> None:
    """Updates that each change one more tensor add up: no buffer brings back an older version's tensor."""
    weights = bench.weights()
    names = list(weights.tensors)
    async with bench.engine() as engine:
        for number, name in enumerate([names[0], names[-1], names[len(names) // 2], names[3], names[-2], names[1]]):
            weights = nudged(weights, name, seed=number)
            await bench.update(engine, weights)
            told = f"update {number + 1} of 6, each changing one more tensor, this one {name}"
            await computes(bench, engine, bench.model(), weights, told)


@check("infer.weights.back_and_forth", level=Level.SINGLE, law=7, spec="infer#weights")
async def back_and_forth(bench: InferBench) -> None:
    """Weights that return to what they were compute what they computed; each update replaces all of the last."""
    one, two, three = (bench.weights(bench.model(seed=seed)) for seed in (0, 5, 6))
    async with bench.engine() as engine:
        for number, weights in enumerate((two, one, two, three, one)):
            await bench.update(engine, weights)
            await computes(bench, engine, bench.model(), weights, f"update {number + 1} of 5")


@check("infer.weights.tied_again", level=Level.SINGLE, law=7, spec="infer#weights")
async def tied_again(bench: InferBench) -> None:
    """A tied head follows the tensor it is tied to in every update, not in the first alone."""
    folder = bench.model(tied=True)
    weights = bench.weights(folder)
    async with bench.engine(model=folder, fresh=True) as engine:
        for number, carrier in enumerate(sorted({*weights.tied.values()}) * 3):
            weights = nudged(weights, carrier, seed=number)
            await bench.update(engine, weights)
            await computes(bench, engine, folder, weights, f"update {number + 1}, which changed {carrier}")


@check("infer.weights.tied_sender", level=Level.SINGLE, law=7, spec="infer#weights")
async def tied_sender(bench: InferBench) -> None:
    """What a trainer sends with a tied head fills the head of a model that has its own, in every update; or is refused.

    Nothing in between: a refusal is a CoverageError and leaves what serves as it was. Where updates are cast,
    the second comes in bfloat16 and the third in float32.
    """
    folder, tied = bench.model(tied=False), bench.model(tied=True, seed=5)
    casts = bench.target.claimed("weights.cast")
    async with bench.engine(model=folder, fresh=True) as engine:
        serves, weights, source = bench.weights(folder), bench.weights(tied), folder
        for number in range(3):
            told = f"tied weights for an untied model, update {number + 1}"
            try:
                await bench.update(engine, weights)
            except CoverageError as error:
                bench.notes.append(f"refused: {error}")
            else:
                serves, source = weights, tied
            await computes(bench, engine, source, serves, told)
            weights = nudged(weights, next(iter(weights.tied.values())), seed=number)
            weights = in_dtypes(weights, DTYPES[number]) if casts and number < len(DTYPES) else weights


@check("infer.weights.after_abort", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.staged",))
async def after_abort(bench: InferBench) -> None:
    """Nothing of a dropped or refused update is found in the next one."""
    base, other = bench.weights(), bench.weights(bench.model(seed=5))
    count = len(base.tensors)
    async with bench.engine() as engine:
        for at in (1, count // 2, count - 1):
            version = await bench.serving(engine) + 1
            source = FailingSource(other, version, at=at, error=OSError("the sender went away"))
            told = f"receive_weights from a source that raised before tensor {at}"
            error = await raises(Exception, partial(engine.receive_weights, source, version), told)
            bench.numbers[f"refused at {at}"] = float(isinstance(error, OSError))
            await engine.abort_weights()
            await computes(bench, engine, bench.model(), base, f"an update that broke off at tensor {at}")
            base = nudged(base, "model.norm.weight", seed=at)
            await bench.update(engine, base)
            await computes(bench, engine, bench.model(), base, f"the update after one broken off at {at}")


@check("infer.weights.cast", level=Level.SINGLE, law=7, spec="infer#weights", requires=("weights.cast",))
async def cast(bench: InferBench) -> None:
    """Weights of another floating dtype are fingerprinted as they came, and served as cast."""
    dtype = "bfloat16" if bench.dtype == "float32" else "float32"
    sent = in_dtypes(bench.weights(bench.model(seed=5)), dtype)
    served = in_dtypes(sent, bench.dtype)
    async with bench.engine() as engine:
        version = await bench.serving(engine) + 1
        receipt = await engine.receive_weights(sent.offer(version), version)
        await engine.commit_weights(version)
        wrong = [name for name, tensor in sent.tensors.items() if receipt.fingerprints[name] != fingerprint(tensor)]
        expect(not wrong, f"fingerprints must be of the {dtype} bytes that came; wrong: {wrong[:4]}")
        await computes(bench, engine, bench.model(), served, f"weights sent as {dtype}")


@check("infer.weights.cast_refused", level=Level.SINGLE, law=8, spec="infer#weights", unless=("weights.cast",))
async def cast_refused(bench: InferBench) -> None:
    """An engine that does not claim to cast refuses weights of another dtype."""
    sent = in_dtypes(bench.weights(bench.model(seed=5)), "bfloat16" if bench.dtype == "float32" else "float32")
    async with bench.engine(fresh=True) as engine:
        await bench.arefuses("weights.cast", lambda: engine.receive_weights(sent.offer(1), 1))


CAST = ("weights.cast",)
COARSE = 0.2
"""Log-probs of a bfloat16 engine against the float32 truth of its rounded weights, on models of two layers."""


def recast(bench: InferBench, *dtypes: str, seed: int = 21) -> tuple[FolderWeights, FolderWeights]:
    """Return other weights in these dtypes, taking turns, and what they are worth in float32."""
    sent = in_dtypes(FolderWeights.of(bench.model(seed=seed)), *dtypes)
    return sent, in_dtypes(sent, "float32")


async def proved_update(bench: InferBench, engine: InferenceEngine, sent: FolderWeights) -> None:
    """Update, and expect the receipt to prove the bytes that were sent."""
    version = await bench.serving(engine) + 1
    receipt = await bench.take(engine, sent.offer(version), version)
    for name, tensor in sent.tensors.items():
        proved = receipt.fingerprints.get(name)
        told = f"the receipt of {name}, sent as {tensor.dtype}, is {proved}: not of the bytes that were sent"
        expect(proved == fingerprint(tensor), told)


@check("infer.cast.bfloat16_sent", level=Level.SINGLE, law=7, spec="infer#weights", requires=CAST)
async def bfloat16_sent(bench: InferBench) -> None:
    """Weights sent in bfloat16, all or some of them, are served at their value; the proof is of the bytes sent."""
    async with bench.engine(*CAST) as engine:
        for dtypes, seed in ((("bfloat16",), 21), (("float32", "bfloat16"), 22), (("float32",), 23)):
            sent, worth = recast(bench, *dtypes, seed=seed)
            await proved_update(bench, engine, sent)
            request = bench.ask(5, 9, 7, name=f"r{seed}", temperature=1.0, max_new_tokens=24)
            told = f"after an update in {' and '.join(dtypes)}"
            await expect_answered(bench, engine, request, weights=worth, told=told)


@check("infer.cast.bfloat16_served", level=Level.SINGLE, law=7, spec="infer#weights", requires=CAST)
async def bfloat16_served(bench: InferBench) -> None:
    """An engine that serves bfloat16 takes float32 weights at their rounded value, and proves the bytes that came."""
    if "bfloat16" not in bench.target.adapter.dtypes:
        raise Inconclusive("the adapter names no second dtype that the engine serves")
    async with bench.engine(*CAST, dtype="bfloat16") as engine:
        for dtype, seed in (("float32", 21), ("bfloat16", 22), ("float32", 23)):
            sent, _ = recast(bench, dtype, seed=seed)
            _, rounded = recast(bench, "bfloat16", seed=seed)
            await proved_update(bench, engine, sent)
            request = bench.ask(5, 9, 7, name=f"r{seed}", temperature=1.0, max_new_tokens=24)
            result = await engine.generate(request)
            well_formed(result, request)
            wanted = bench.oracle().logprobs(request.input_ids, result.output_ids, weights=rounded.tensors)
            far = gap(result, wanted)
            expect(far <= COARSE, f"sent in {dtype}, served in bfloat16: log-probs are off by {far:.3f}")
