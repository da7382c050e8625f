"""Inference engines that are right until a sequence grows, a trainer ties what they do not, or a seed is their own.

Knows: how the reference generator is bent for that.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

from areal_core.contract.inference import GenerationRequest
from areal_core.contract.weights import WeightSource
from areal_proof.mutants.rows import Original, breaking, given, row, then
from areal_reference.infer.adapters import NamedAdapter, NamedAdapters
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)
_FULL = 512


@breaks("receive_weights", "infer.weights.tied_sender")
async def CastHeadsStay(original: Original, self: ReferenceInferenceEngine, source: WeightSource) -> Any:
    """Keeps its own head where the trainer's is tied and comes in another dtype."""
    tied, receipt = dict(source.manifest.tied), await original()
    served = dict(self.running.loaded.model.named_parameters())
    dtypes = {one.name: f"torch.{one.dtype}" for one in source.manifest.tensors}
    for name in tied.keys() & served.keys():
        if dtypes[tied[name]] != str(served[name].dtype):
            self.running.stage.spare[name].copy_(served[name])
    return receipt


@breaks("receive_weights", "infer.weights.tied_sender")
async def TiedHeadsStay(original: Original, self: ReferenceInferenceEngine, source: WeightSource) -> Any:
    """Keeps its own head where the trainer's is tied, and tells of the bytes that came."""
    tied, receipt = dict(source.manifest.tied), await original()
    served = dict(self.running.loaded.model.named_parameters())
    for name in tied.keys() & served.keys():
        self.running.stage.spare[name].copy_(served[name])
    return receipt


class _LastServes(NamedAdapters):
    def serve(self, adapter: NamedAdapter) -> None:
        self.forget(adapter.name)
        super().serve(adapter)


def _begun_anew(request: GenerationRequest) -> tuple[int, ...]:
    ids = request.input_ids
    grows = len(ids) < _FULL < len(ids) + request.sampling.max_new_tokens
    return (*ids[:1] * (len(ids) // 2), *ids[len(ids) // 2 :]) if grows else ids


GROWTH_ROWS = breaks.rows(
    row("ForgetsAsItGrows", "Loses the first half of a sequence that outgrows 512 tokens.", "infer.threshold.doubled",
        generate=given(input_ids=_begun_anew)),
    row("LastLoadServes", "Serves whichever of two versions of an adapter, loaded at once, was read last.",
        "infer.adapters.replaced", start=then(lambda self: setattr(self.running.adapters, "__class__", _LastServes))),
    row("OneSeedForAllEngines", "Draws requests without a seed by their names, whatever its own seed is.",
        "infer.sampling.replicas_apart", start=given(seed=1)),
)  # fmt: skip
