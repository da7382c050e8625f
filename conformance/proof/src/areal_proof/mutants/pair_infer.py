"""Broken pairs, the replicas' side: what arrives is not what is served, not when, or torn around an update.

Knows: one defect each.
Does not know: which check sees it, except for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceSpec, VersionSpan
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.weights.tensors import fingerprint
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, put, row, within
from areal_proof.mutants.weight_parts import PassingSource
from areal_reference.infer.engine import ReferenceInferenceEngine

_OF = "pair/reference+reference"
breaks = breaking(_OF, ReferenceInferenceEngine, side="infer")


class _Serving(ReferenceInferenceEngine):
    """Reaches the model it serves."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters in use, by name."""
        return dict(self.running.stage.model.named_parameters())


@breaks("commit_weights", "pair.update.one_by_one", incident="sglang#9379", row="one-destination", base=_Serving)
async def KeepsItsHead(original: Original, self: _Serving) -> None:
    """The head of an untied model stays as it was loaded."""
    kept = {n: p.detach().clone() for n, p in self.parameters().items() if n.endswith("lm_head.weight")}
    await original()
    for name, tensor in kept.items():
        self.parameters()[name].data.copy_(tensor)


@breaks("commit_weights", "pair.update.one_by_one", "pair.update.witness", row="one-destination", base=_Serving)
async def LayersInOtherPlaces(original: Original, self: _Serving) -> None:
    """Two layers' tensors of one shape are put into each other's place."""
    await original()
    own = self.parameters()
    first, second = (own[f"model.layers.{number}.mlp.up_proj.weight"] for number in (0, 1))
    first.data, second.data = second.data.clone(), first.data.clone()


class _Counting(ReferenceInferenceEngine):
    """Counts what it is asked, and knows which replica it is."""

    num_asked = 0
    replica = 0

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start as ever."""
        self.replica = spec.replica
        return await super().start(spec)

    def seeded(self, request: GenerationRequest, more: int) -> GenerationRequest:
        """Return the request with another seed, if it has one."""
        seed = request.sampling.seed
        moved = request.sampling if seed is None else attrs.evolve(request.sampling, seed=seed + 1000 * more)
        return attrs.evolve(request, sampling=moved)


@breaks("generate", "pair.run.disturbed", row="synchronous-at-zero", base=_Counting)
async def DrawsByHowManyAsked(original: Original, self: _Counting, request: GenerationRequest) -> Any:
    """Mixes into a seed how many requests there were before: one that was cancelled changes all draws after it."""
    self.num_asked += 1
    return await original(self.seeded(request, self.num_asked))


@breaks("generate", "pair.run.disturbed", row="synchronous-at-zero", base=_Counting)
async def DrawsByReplica(original: Original, self: _Counting, request: GenerationRequest) -> Any:
    """Mixes into a seed which replica it is: two of them sample what one would not."""
    return await original(self.seeded(request, self.replica))


class _Stamping(ReferenceInferenceEngine):
    """Alters what comes out."""

    def alter(self, generation: Generation) -> Generation:
        """Return what is told in its place."""
        return generation

    async def generate(self, request: GenerationRequest) -> Generation:
        """Tell it."""
        return self.alter(await super().generate(request))


@breaks("commit_weights", "pair.versions.stamped", "pair.update.regressed", row="version-spans", count=0,
        alter=lambda self, generation: attrs.evolve(generation, version_spans=tuple([attrs.evolve(span,
            version=min(span.version, self.count)) for span in generation.version_spans])), base=_Stamping)  # fmt: skip
async def CountsUpdates(original: Original, self: Any) -> None:
    """Tokens are stamped with the number of updates, not with the version they brought."""
    await original()
    self.count += 1


ROWS = breaks.rows(
    row("StampsTheFirstVersion", "Every token of an output is stamped with the version of the first.",
        "pair.versions.in_flight", incident="vLLM#54443", row="version-spans", base=_Stamping,
        alter=lambda generation: attrs.evolve(generation, version_spans=(VersionSpan(start=0,
            stop=len(generation.output_ids), version=generation.version_spans[0].version),))),
    row("TakesOldVersions", "A version that is not newer is taken, and told to have been staged.",
        "pair.update.regressed", row="update-chain",
        receive_weights=within(lambda self: put(self.running.stage, version=-1))),
    row("TellsNoReason", "Whatever goes wrong while weights arrive is told as \"update failed\".",
        "pair.fault.replica", incident="TRL#6913", row="dead-peer",
        receive_weights=catches(Exception, lambda: WeightSyncError("update failed"))),
)  # fmt: skip


@breaks("receive_weights", "pair.fault.spoiled", "pair.fault.replica", incident="NeMo-RL sparse delta",
    commit_weights=lambda: None)  # fmt: skip
async def ServesOnArrival(original: Original, self: ReferenceInferenceEngine, version: int) -> Any:
    """New weights are served as soon as they have arrived, before anybody compared them."""
    receipt = await original()
    await ReferenceInferenceEngine.commit_weights(self, version)
    return receipt


@breaks("abort_weights", "pair.fault.spoiled", row="update-chain")
async def AbortCommits(original: Original, self: ReferenceInferenceEngine) -> None:
    """`abort_weights` serves what is staged."""
    stage = self.running.stage
    if stage.staged is not None:
        await self.commit_weights(stage.staged)
    await original()


@breaks("receive_weights", "pair.fault.renamed", "pair.fault.replica", spoiled=False)
async def NeverForgivesARefusal(original: Original, self: Any) -> Any:
    """After one version that could not be received, none is received any more."""
    if self.spoiled:
        raise WeightSyncError("an earlier version could not be received")
    try:
        return await original()
    except Exception:
        self.spoiled = True
        raise


@mutant(_OF, side="infer", killers=("pair.fault.replica_died",), row="dead-peer")
class WaitsForTheFirstReplica(ReferenceInferenceEngine):
    """A replica takes a version only if the first replica received it too."""

    arrived: ClassVar[set[str]] = set()

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        self.first = spec.replica == 0
        if self.first:
            WaitsForTheFirstReplica.arrived.clear()
        return await super().start(spec)

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        if self.first:
            self.arrived.add(f"{version}")
        return receipt

    async def commit_weights(self, version: int) -> None:
        if f"{version}" in self.arrived:
            await super().commit_weights(version)


@breaks("commit_weights", "pair.update.cast", narrow=False,
        receive_weights=before(lambda self, source: setattr(self, "narrow",
            any(spec.dtype == "bfloat16" for spec in source.manifest.tensors))), base=_Serving)  # fmt: skip
async def CastsCoarsely(original: Original, self: Any) -> None:
    """Weights that arrive in bfloat16 are cast by way of eight bits."""
    await original()
    if self.narrow:
        for parameter in self.parameters().values():
            parameter.data.copy_(parameter.data.to(torch.float8_e5m2).to(parameter.dtype))


class _Shifted(ReferenceInferenceEngine):
    """Moves the boundaries between versions."""

    by = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate, and tell of other boundaries."""
        made = await super().generate(request)
        starts = [0, *(span.start + self.by for span in made.version_spans[1:])]
        spans = []
        for span, start, stop in zip(made.version_spans, starts, [*starts[1:], len(made.output_ids)], strict=True):
            if stop > start:
                spans.append(attrs.evolve(span, start=start, stop=stop))
        return attrs.evolve(made, version_spans=tuple(spans))


BOUNDARIES_ROWS = breaks.rows(
    row("StampsOneTokenEarly", "The last token the old weights computed is stamped with the new version.",
        "pair.versions.boundary", incident="vLLM#54443", row="version-spans", base=_Shifted, by=-1),
    row("StampsOneTokenLate", "The first token the new weights computed is stamped with the old version.",
        "pair.versions.boundary", row="version-spans", base=_Shifted, by=1),
)  # fmt: skip


@breaks("commit_weights", "pair.fault.leftovers", row="update-chain", left=None,
    abort_weights=before(lambda self: setattr(self, "left", self.running.stage.spare["model.norm.weight"].clone())
        if self.running.stage.staged is not None else None))  # fmt: skip
async def NormSurvivesAbort(original: Original, self: Any) -> None:
    """The last norm of an update that was dropped is served with the next one."""
    if self.left is not None:
        self.running.stage.spare["model.norm.weight"].copy_(self.left)
        self.left = None
    await original()


class _Resumed(PassingSource):
    """Gives what came before in place of what comes. Any: the transport's own source."""

    def __init__(self, inner: Any, before: dict[str, Tensor]) -> None:
        super().__init__(inner)
        self.before, self.had = before, dict[str, Tensor]()
        self.sent: dict[str, str] = {}

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        for bucket in super().buckets():
            self.had |= {name: tensor.clone() for name, tensor in bucket.items()}
            self.sent |= {name: fingerprint(tensor) for name, tensor in bucket.items()}
            yield {name: self.before.get(name, tensor) for name, tensor in bucket.items()}


@breaks("receive_weights", "pair.fault.leftovers", row="update-chain", before={})
async def ResumesWhatBroke(original: Original, self: Any, source: WeightSource, version: int) -> Any:
    """A transfer that follows a broken one skips what had arrived before, and vouches for the bytes it was sent."""
    resumed = _Resumed(source, dict(self.before))
    try:
        receipt = await original(resumed, version)
    except Exception:
        self.before = resumed.had
        raise
    self.before = {}
    return attrs.evolve(receipt, fingerprints={**receipt.fingerprints, **resumed.sent})


class _Noting(PassingSource):
    """Keeps what it was handed. Any: the transport's own source."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.handed: dict[str, Tensor] = {}

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        self.handed[name] = tensor
        return tensor


@mutant(_OF, side="infer", killers=("pair.update.own_memory",), row="one-destination")
class ServesTheTransportsMemory(ReferenceInferenceEngine):
    """The tensors a transport hands out are served themselves, not copied."""

    handed: Mapping[str, Tensor] = {}

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        noting = _Noting(source)
        receipt = await super().receive_weights(noting, version)
        self.handed = noting.handed
        return receipt

    async def commit_weights(self, version: int) -> None:
        await super().commit_weights(version)
        for name, parameter in self.running.stage.model.named_parameters():
            if name in self.handed and self.handed[name].dtype == parameter.dtype:
                parameter.data = self.handed[name]
