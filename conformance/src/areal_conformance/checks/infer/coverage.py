"""Updates that do not fit the model one to one: refused whole, and the old weights serve on, bit for bit.

Knows: every way an update can fail to fit.
Does not know: faults of the source itself (`faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, Row, family
from areal_conformance.oracles.infer_judging import expect_policy, prompts, raises, same
from areal_conformance.outcome import expect
from areal_core.contract.errors import CoverageError, WeightSyncError
from areal_torch.testing.serving import FolderWeights, OfferedWeights

Spoil = Callable[[FolderWeights, int], OfferedWeights]
Named = list[tuple[str, Tensor]]
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
LAST = "model.layers.1.mlp.down_proj.weight"
EXTRA = "model.extra.weight"
RENAMED = ((NORM, "model.final_norm.weight"), (NORM, "norm.weight"), (LAST, LAST.replace(".1.", ".2.")))


async def refused(bench: InferBench, told: str, spoil: Spoil, *, tied: bool = False) -> None:
    """Expect an unfit update to be refused with CoverageError, to leave no trace, and a fit one to work after it."""
    folder: Path = bench.model(tied=tied)
    new = bench.weights(bench.model(tied=tied, seed=5))
    requests = bench.asks(prompts(3), temperature=0.0)
    async with bench.engine(model=folder) as engine:
        version = await bench.serving(engine) + 1
        before = [await bench.generate(engine, request) for request in requests]
        for _ in range(2):
            async with bench.receiving(engine):
                receive = partial(engine.receive_weights, spoil(new, version), version)
                await raises(CoverageError, receive, f"an update with {told}")
                commit = partial(engine.commit_weights, version)
                await raises(WeightSyncError, commit, f"commit of an update with {told}")
        for request, old in zip(requests, before, strict=True):
            now = await bench.generate(engine, request)
            changed = f"the output changed: {old} became {now}"
            expect(same(bench, old, now), f"an update with {told} was refused, yet {changed}")
        expect(await bench.serving(engine) == version - 1, f"an update with {told} was refused, the version changed")
        await bench.update(engine, new)
        after = [await bench.generate(engine, request) for request in requests]
    if not tied:
        for result, request in zip(after, requests, strict=True):
            expect_policy(bench, result, request, weights=new, told=f"a good update after one with {told}")


def changing(edit: Callable[[dict[str, Tensor]], dict[str, Tensor]], **how: Any) -> Spoil:
    """Offer other tensors, and say so in the manifest. Any: ties."""
    return lambda weights, version: attrs.evolve(weights, tensors=edit(dict(weights.tensors)), **how).offer(version)


def reshaping(name: str, edit: Callable[[Tensor], Tensor]) -> Spoil:
    """Offer one tensor otherwise."""
    return changing(lambda tensors: {**tensors, name: edit(tensors[name])})


def lacking(name: str) -> Spoil:
    """Offer all tensors but one."""
    return changing(lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})


def renaming(old: str, new: str) -> Spoil:
    """Offer one tensor under another name."""
    return changing(lambda tensors: {new if key == old else key: tensor for key, tensor in tensors.items()})


def tying(ties: dict[str, str]) -> Spoil:
    """Offer all tensors with other ties."""
    return changing(lambda tensors: tensors, tied=ties)


def sending(edit: Callable[[Named], Named]) -> Spoil:
    """Send something else than the manifest announces."""

    def spoil(weights: FolderWeights, version: int) -> OfferedWeights:
        offer = weights.offer(version)
        return attrs.evolve(offer, tensors=edit([*offer.tensors]))

    return spoil


def announced_twice(weights: FolderWeights, version: int) -> OfferedWeights:
    """Announce and send the last tensor twice."""
    offer = weights.offer(version)
    manifest = attrs.evolve(offer.manifest, tensors=(*offer.manifest.tensors, offer.manifest.tensors[-1]))
    return attrs.evolve(offer, manifest=manifest, tensors=[*offer.tensors, offer.tensors[-1]])


UNFIT: dict[str, Row] = {
    "missing": Row(
        "An update that lacks one tensor of the model is refused: norm, head, or the last layer's.",
        {f"no {name}": lacking(name) for name in (NORM, HEAD, LAST, EMBEDDING)},
    ),
    "extra": Row(
        "An update with a tensor the model does not have is refused.",
        {"a tensor the model does not have": changing(lambda tensors: {**tensors, EXTRA: torch.zeros(2)})},
    ),
    "renamed": Row(
        "An update that names a tensor otherwise than the model does is refused.",
        {f"{old} called {new}": renaming(old, new) for old, new in RENAMED},
    ),
    "shape": Row(
        "An update with a tensor of another shape is refused: shorter, transposed, or of one number to be spread.",
        {
            f"a {NORM} one number short": reshaping(NORM, lambda tensor: tensor[:-1].clone()),
            f"a {NORM} of one number": reshaping(NORM, lambda tensor: tensor[:1].clone()),
            f"a transposed {LAST}": reshaping(LAST, lambda tensor: tensor.T.contiguous()),
            "a head of one row more": reshaping(HEAD, lambda tensor: torch.cat([tensor, tensor[:1]])),
        },
    ),
    "dtype": Row(
        "An update with a tensor that holds no floating-point numbers is refused.",
        {f"a {NORM} of integers": reshaping(NORM, lambda tensor: torch.ones(tensor.shape, dtype=torch.int32))},
    ),
    "other_than_announced": Row(
        "A tensor that comes in another shape, dtype or under another name than was announced is refused.",
        {
            "a tensor wider than announced": sending(
                lambda sent: [(n, t.double() if n == LAST else t) for n, t in sent]
            ),
            "a tensor shorter than announced": sending(
                lambda sent: [(name, tensor[:1].clone() if name == NORM else tensor) for name, tensor in sent]
            ),
            "a tensor that was not announced": sending(lambda sent: [*sent, (EXTRA, sent[0][1])]),
        },
    ),
    "never_came": Row(
        "An update that ends before every announced tensor came is refused: the first, the last, or all missing.",
        {
            "its last tensor never sent": sending(lambda sent: sent[:-1]),
            "its first tensor never sent": sending(lambda sent: sent[1:]),
            "nothing sent at all": sending(lambda sent: []),
        },
    ),
    "twice": Row(
        "A tensor that comes twice, or is announced twice, is refused.",
        {
            "a tensor sent twice": sending(lambda sent: [*sent, sent[0]]),
            "a tensor announced and sent twice": announced_twice,
        },
    ),
}
TIED: dict[str, Row] = {
    "tied_missing": Row(
        "A model with a tied head refuses an update that says nothing of the tie.", {"the tie left out": tying({})}
    ),
    "tied_wrongly": Row(
        "A model with a tied head refuses an update that ties it to another tensor, or ties what the model has not.",
        {
            "the head tied to the norm": tying({HEAD: NORM}),
            "a tie the model does not have": tying({HEAD: EMBEDDING, "model.other.weight": EMBEDDING}),
        },
    ),
    "head_of_its_own": Row(
        "A model whose head is its embedding refuses an update that brings a head of its own.",
        {"an untied head for a tied model": changing(lambda own: {**own, HEAD: own[EMBEDDING] * 0.5}, tied={})},
    ),
}


@family("infer.coverage.{what}", UNFIT, level=Level.SINGLE, law=7, spec="weights#coverage")
async def unfit(bench: InferBench, cases: dict[str, Spoil]) -> None:
    """An update that does not fit the model is refused."""
    for told, spoil in cases.items():
        await refused(bench, told, spoil)


@family("infer.coverage.{what}", TIED, level=Level.SINGLE, law=7, spec="weights#coverage")
async def unfit_for_tied(bench: InferBench, cases: dict[str, Spoil]) -> None:
    """An update that does not fit a model with a tied head is refused."""
    for told, spoil in cases.items():
        await refused(bench, told, spoil, tied=True)
