"""Updates that do not fit the model one to one: refused whole, and the old weights serve on, bit for bit.

Knows: every way an update can fail to fit.
Does not know: faults of the source itself (`faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import torch

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import expect_policy, prompts, raises, same
from areal_conformance.outcome import expect
from areal_core.contract.errors import CoverageError, WeightSyncError
from areal_torch.testing.serving import FolderWeights, OfferedWeights

Spoil = Callable[["FolderWeights", int], "OfferedWeights"]
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
LAST = "model.layers.1.mlp.down_proj.weight"


async def refused(bench: InferBench, told: str, spoil: Spoil, *, tied: bool = False) -> None:
    """Expect an unfit update to be refused with CoverageError, to leave no trace, and a fit one to work after it."""
    folder: Path = bench.model(tied=tied)
    new = bench.weights(bench.model(tied=tied, seed=5))
    requests = [bench.ask(*ids, name=f"r{n}", temperature=0.0) for n, ids in enumerate(prompts(3))]
    async with bench.engine(model=folder) as engine:
        version = await bench.serving(engine) + 1
        before = [await bench.generate(engine, request) for request in requests]
        mode = None if bench.target.claimed("weights.staged") else bench.settling()
        for _ in range(2):
            if mode is not None:
                await engine.pause(mode)
            await raises(
                CoverageError, lambda: engine.receive_weights(spoil(new, version), version), f"an update with {told}"
            )
            await raises(WeightSyncError, lambda: engine.commit_weights(version), f"commit of an update with {told}")
            if mode is not None:
                await engine.abort_weights()
                await engine.resume()
        for request, old in zip(requests, before, strict=True):
            now = await bench.generate(engine, request)
            expect(
                same(bench, old, now), f"an update with {told} was refused, yet the output changed: {old} became {now}"
            )
        expect(await bench.serving(engine) == version - 1, f"an update with {told} was refused, the version changed")
        await bench.update(engine, new)
        after = [await bench.generate(engine, request) for request in requests]
    if not tied:
        for result, request in zip(after, requests, strict=True):
            expect_policy(bench, result, request, weights=new, told=f"a good update after one with {told}")


def changed(weights: FolderWeights, **how: object) -> FolderWeights:
    """Return weights with other tensors or ties."""
    return attrs.evolve(weights, **how)  # type: ignore[arg-type]


def without(weights: FolderWeights, name: str) -> FolderWeights:
    """Return weights without a tensor."""
    return changed(weights, tensors={key: tensor for key, tensor in weights.tensors.items() if key != name})


def _short_of(name: str, weights: FolderWeights, version: int) -> OfferedWeights:
    return without(weights, name).offer(version)


@check("infer.coverage.missing", level=Level.SINGLE, law=7, spec="weights#coverage")
async def missing(bench: InferBench) -> None:
    """An update that lacks one tensor of the model is refused: norm, head, or the last layer's."""
    for name in (NORM, HEAD, LAST, EMBEDDING):
        await refused(bench, f"no {name}", partial(_short_of, name))


@check("infer.coverage.extra", level=Level.SINGLE, law=7, spec="weights#coverage")
async def extra(bench: InferBench) -> None:
    """An update with a tensor the model does not have is refused."""

    def spoil(weights: FolderWeights, version: int) -> OfferedWeights:
        return changed(weights, tensors={**weights.tensors, "model.extra.weight": torch.zeros(2)}).offer(version)

    await refused(bench, "a tensor the model does not have", spoil)


@check("infer.coverage.renamed", level=Level.SINGLE, law=7, spec="weights#coverage")
async def renamed(bench: InferBench) -> None:
    """An update that names a tensor otherwise than the model does is refused."""
    for old, new in ((NORM, "model.final_norm.weight"), (NORM, "norm.weight"), (LAST, LAST.replace(".1.", ".2."))):

        def spoil(weights: FolderWeights, version: int, old: str = old, new: str = new) -> OfferedWeights:
            tensors = {new if name == old else name: tensor for name, tensor in weights.tensors.items()}
            return changed(weights, tensors=tensors).offer(version)

        await refused(bench, f"{old} called {new}", spoil)


@check("infer.coverage.shape", level=Level.SINGLE, law=7, spec="weights#coverage")
async def shape(bench: InferBench) -> None:
    """An update with a tensor of another shape is refused: shorter, transposed, or of one number to be spread."""

    def short(weights: FolderWeights, version: int) -> OfferedWeights:
        tensors = {**weights.tensors, NORM: weights.tensors[NORM][:-1].clone()}
        return changed(weights, tensors=tensors).offer(version)

    def one_number(weights: FolderWeights, version: int) -> OfferedWeights:
        return changed(weights, tensors={**weights.tensors, NORM: weights.tensors[NORM][:1].clone()}).offer(version)

    def transposed(weights: FolderWeights, version: int) -> OfferedWeights:
        tensors = {**weights.tensors, LAST: weights.tensors[LAST].T.contiguous()}
        return changed(weights, tensors=tensors).offer(version)

    def one_row_more(weights: FolderWeights, version: int) -> OfferedWeights:
        head = weights.tensors[HEAD]
        return changed(weights, tensors={**weights.tensors, HEAD: torch.cat([head, head[:1]])}).offer(version)

    await refused(bench, f"a {NORM} one number short", short)
    await refused(bench, f"a {NORM} of one number", one_number)
    await refused(bench, f"a transposed {LAST}", transposed)
    await refused(bench, "a head of one row more", one_row_more)


@check("infer.coverage.dtype", level=Level.SINGLE, law=7, spec="weights#coverage")
async def dtype(bench: InferBench) -> None:
    """An update with a tensor that holds no floating-point numbers is refused."""

    def spoil(weights: FolderWeights, version: int) -> OfferedWeights:
        whole = torch.ones(weights.tensors[NORM].shape, dtype=torch.int32)
        return changed(weights, tensors={**weights.tensors, NORM: whole}).offer(version)

    await refused(bench, f"a {NORM} of integers", spoil)


@check("infer.coverage.other_than_announced", level=Level.SINGLE, law=7, spec="weights#coverage")
async def other_than_announced(bench: InferBench) -> None:
    """A tensor that comes in another shape, dtype or under another name than was announced is refused."""

    def wider(weights: FolderWeights, version: int) -> OfferedWeights:
        offer = weights.offer(version)
        last = [(name, tensor.double() if name == LAST else tensor) for name, tensor in offer.tensors]
        return attrs.evolve(offer, tensors=last)

    def cut(weights: FolderWeights, version: int) -> OfferedWeights:
        offer = weights.offer(version)
        last = [(name, tensor[:1].clone() if name == NORM else tensor) for name, tensor in offer.tensors]
        return attrs.evolve(offer, tensors=last)

    def stranger(weights: FolderWeights, version: int) -> OfferedWeights:
        offer = weights.offer(version)
        return attrs.evolve(offer, tensors=[*offer.tensors, ("model.extra.weight", offer.tensors[0][1])])

    await refused(bench, "a tensor wider than announced", wider)
    await refused(bench, "a tensor shorter than announced", cut)
    await refused(bench, "a tensor that was not announced", stranger)


@check("infer.coverage.never_came", level=Level.SINGLE, law=7, spec="weights#coverage")
async def never_came(bench: InferBench) -> None:
    """An update that ends before every announced tensor came is refused: the first, the last, or all missing."""

    def keeping(weights: FolderWeights, version: int, part: slice) -> OfferedWeights:
        offer = weights.offer(version)
        return attrs.evolve(offer, tensors=offer.tensors[part])

    await refused(bench, "its last tensor never sent", lambda w, v: keeping(w, v, slice(None, -1)))
    await refused(bench, "its first tensor never sent", lambda w, v: keeping(w, v, slice(1, None)))
    await refused(bench, "nothing sent at all", lambda w, v: keeping(w, v, slice(0, 0)))


@check("infer.coverage.twice", level=Level.SINGLE, law=7, spec="weights#coverage")
async def twice(bench: InferBench) -> None:
    """A tensor that comes twice, or is announced twice, is refused."""

    def sent(weights: FolderWeights, version: int) -> OfferedWeights:
        offer = weights.offer(version)
        return attrs.evolve(offer, tensors=[*offer.tensors, offer.tensors[0]])

    def announced(weights: FolderWeights, version: int) -> OfferedWeights:
        offer = weights.offer(version)
        manifest = attrs.evolve(offer.manifest, tensors=(*offer.manifest.tensors, offer.manifest.tensors[-1]))
        return attrs.evolve(offer, manifest=manifest, tensors=[*offer.tensors, offer.tensors[-1]])

    await refused(bench, "a tensor sent twice", sent)
    await refused(bench, "a tensor announced and sent twice", announced)


@check("infer.coverage.tied_missing", level=Level.SINGLE, law=7, spec="weights#coverage")
async def tied_missing(bench: InferBench) -> None:
    """A model with a tied head refuses an update that says nothing of the tie."""
    await refused(bench, "the tie left out", lambda w, v: changed(w, tied={}).offer(v), tied=True)


@check("infer.coverage.tied_wrongly", level=Level.SINGLE, law=7, spec="weights#coverage")
async def tied_wrongly(bench: InferBench) -> None:
    """A model with a tied head refuses an update that ties it to another tensor, or ties what the model has not."""
    await refused(bench, "the head tied to the norm", lambda w, v: changed(w, tied={HEAD: NORM}).offer(v), tied=True)
    extra_tie = {HEAD: EMBEDDING, "model.other.weight": EMBEDDING}
    await refused(bench, "a tie the model does not have", lambda w, v: changed(w, tied=extra_tie).offer(v), tied=True)


@check("infer.coverage.head_of_its_own", level=Level.SINGLE, law=7, spec="weights#coverage")
async def head_of_its_own(bench: InferBench) -> None:
    """A model whose head is its embedding refuses an update that brings a head of its own."""

    def spoil(weights: FolderWeights, version: int) -> OfferedWeights:
        tensors = {**weights.tensors, HEAD: weights.tensors[EMBEDDING] * 0.5}
        return changed(weights, tensors=tensors, tied={}).offer(version)

    await refused(bench, "an untied head for a tied model", spoil, tied=True)
