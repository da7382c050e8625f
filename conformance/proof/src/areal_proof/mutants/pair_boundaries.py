"""Broken pairs around an update: tokens stamped by a neighbour's version, tensors left of an update given up.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.weights.fingerprint import fingerprint
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, row
from areal_proof.mutants.weight_parts import PassingSource
from areal_reference.infer.engine import ReferenceInferenceEngine

_OF = "pair/reference+reference"
breaks = breaking(_OF, ReferenceInferenceEngine, side="infer")


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


ROWS = breaks.rows(
    row("StampsOneTokenEarly", "The last token the old weights computed is stamped with the new version.",
        "pair.versions.boundary", incident="vLLM#54443", row="version-spans", base=_Shifted, by=-1),
    row("StampsOneTokenLate", "The first token the new weights computed is stamped with the old version.",
        "pair.versions.boundary", row="version-spans", base=_Shifted, by=1),
)  # fmt: skip


@mutant(_OF, side="infer", killers=("pair.fault.leftovers",), row="update-chain")
class NormSurvivesAbort(ReferenceInferenceEngine):
    """The last norm of an update that was dropped is served with the next one."""

    left: Tensor | None = None

    async def abort_weights(self) -> None:
        stage = self._require().stage
        if stage.staged is not None:
            self.left = stage._spare["model.norm.weight"].clone()
        await super().abort_weights()

    async def commit_weights(self, version: int) -> None:
        if self.left is not None:
            self._require().stage._spare["model.norm.weight"].copy_(self.left)
            self.left = None
        await super().commit_weights(version)


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
        for name, parameter in self._require().stage.model.named_parameters():
            if name in self.handed and self.handed[name].dtype == parameter.dtype:
                parameter.data = self.handed[name]
