"""Broken pairs, the trainer's side: what is sent, or said of tokens, is not what it holds, at some length or all.

Knows: one defect each.
Does not know: which check sees it, except for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import StorageError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import EngineInfo, Output, RankContext, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, given, row, subclass, then
from areal_proof.mutants.weight_parts import PassingSink
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.bucketing import buckets
from areal_torch.testing.memory_weights import MemorySink

_OF = "pair/reference+reference"
breaks = breaking(_OF, ReferenceTrainEngine, side="train")


def _parameters(engine: Any) -> Iterator[Tensor]:
    """Return the parameters an engine trains. Any: its private parts are not typed for others."""
    parameters: Iterator[Tensor] = engine.trainer.model.packed.hf.parameters()
    return parameters


@breaks("forward", "pair.run.disturbed", row="no-drift")
def LearnsFromScores(original: Original, self: ReferenceTrainEngine, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Moves a weight a little whenever it scores."""
    scored = original(batch, outputs)
    with torch.no_grad():
        next(_parameters(self)).mul_(1 + 1e-4)
    return scored


class _Resending(ReferenceTrainEngine):
    """Sends other tensors than it holds, by the usual road."""

    def held(self) -> MemorySink:
        """Return what would be sent."""
        kept = MemorySink()
        super().send_weights(kept, 1)
        return kept

    def choose(self, kept: MemorySink) -> Mapping[str, Tensor]:
        """Return what is sent in its place."""
        return kept.tensors

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send what was chosen."""
        assert sink is not None
        kept = self.held()
        assert kept.manifest is not None
        sink.begin(attrs.evolve(kept.manifest, version=version))
        for bucket in buckets(self.choose(kept).items(), sink.bucket_bytes):
            sink.write(bucket)
        return sink.finish()


breaks_resending = breaking(_OF, _Resending, side="train")


@breaks_resending("choose", "pair.update.witness", "pair.update.adapter", row="served-policy-changes", last=None)
def SendsOneStepLate(self: Any, kept: MemorySink) -> Any:
    """An update sends what the update before should have sent."""
    sent, self.last = self.last or kept.tensors, kept.tensors
    return sent


@breaks_resending("choose", "pair.update.witness", incident="ms-swift#9855", row="served-policy-changes", first=None)
def NormsStayBehind(self: Any, kept: MemorySink) -> Any:
    """The weights of norms are sent as they were first sent."""
    if self.first is None:
        self.first = {name: torch.ones_like(t) for name, t in kept.tensors.items() if "norm" in name}
    return {name: self.first.get(name, tensor) for name, tensor in kept.tensors.items()}


@breaks("send_weights", "pair.drift.none", incident="open-instruct#1473", row="no-drift")
def DriftsWithEachUpdate(original: Original, self: ReferenceTrainEngine) -> Any:
    """Sending moves the weights themselves by one part in a million."""
    receipt = original()
    with torch.no_grad():
        for parameter in _parameters(self):
            parameter.mul_(1 + 1e-6)
    return receipt


class _Scoring(ReferenceTrainEngine):
    """Alters the log-probs of trained tokens."""

    def alter(self, batch: Batch, logprobs: Tensor) -> Tensor:
        """Return what is told in their place."""
        return logprobs

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Tell it."""
        told = super().forward(batch, outputs)
        if Output.LOGPROBS not in outputs:
            return told
        return told.with_tokens(logprobs=self.alter(batch, told.tokens["logprobs"]))


@breaks("alter", "pair.gap.logprobs", row="logprob-gap", base=_Scoring)
def LastTokenIsApart(batch: Batch, logprobs: Tensor) -> Any:
    """The log-prob of the last token of each sequence is that of the token before it."""
    told = logprobs.clone()
    for end in batch.cu_seqlens.tolist()[1:]:
        told[end - 1] = logprobs[end - 2]
    return told


_Shrugging = subclass("Shrugging", PassingSink, {"write": catches(StorageError, lambda: None)})
"""A sink whose errors nobody hears of."""


ROWS = breaks.rows(
    row("ForgetsTheTemperature", "The trainer scores tokens at temperature 1, whatever they were sampled at.",
        "pair.gap.logprobs", incident="AReaL#1290", row="logprob-gap", start=given(temperature=1.0)),
    row("PackingShows", "The log-probs of a sequence depend on how many others are packed with it.",
        "pair.gap.packing", "pair.gap.logprobs", incident="vime#64", row="logprob-gap", base=_Scoring,
        alter=lambda batch, logprobs: logprobs - 0.01 * (batch.num_sequences - 1) * batch.tokens["loss_mask"]),
    row("HalfPrecisionIsCold", "In bfloat16 tokens are scored at half the temperature.", "pair.gap.dtypes",
        row="logprob-gap",
        start=given(temperature=lambda spec: spec.temperature * (1.0 if spec.dtype == "float32" else 0.5))),
    row("SwallowsSinkErrors", "A bucket the sink could not take is skipped.", "pair.fault.sender", incident="TRL#6913",
        row="dead-peer", send_weights=lambda original, sink, version: original(_Shrugging(sink), version)),
)  # fmt: skip


RESENDING_ROWS = breaks_resending.rows(
    row("SendsTheBase", "Every update sends the weights the trainer started with.", "pair.update.witness",
        "pair.update.changes_policy", "pair.run.processes", incident="verl#7495", row="served-policy-changes",
        first=None, start=then(lambda self: setattr(self, "first", self.held().tensors)),
        choose=lambda self: self.first),
    row("SendsThroughBfloat16", "Weights are rounded to bfloat16 on the way, though both sides hold float32.",
        "pair.update.witness",
        choose=lambda kept: {name: tensor.to(torch.bfloat16).to(tensor.dtype) for name,
            tensor in kept.tensors.items()}),
    row("SendsWhatItHeldBeforeTheLoad", "After `load_state` the weights of before are sent.", "pair.update.after_load",
        before=None, load_state=before(lambda self: setattr(self, "before", self.held().tensors)),
        choose=lambda self, kept: self.before or kept.tensors),
    row("BelievesTheSink", "The sink's receipt is not compared with the tensors sent.", "pair.fault.sender_spoiled",
        row="update-chain"),
)  # fmt: skip


@mutant(_OF, side="train", killers=("pair.run.synchronous",), incident="verl#6780", row="synchronous-at-zero")
class StartsDifferently(ReferenceTrainEngine):
    """Every trainer of a process starts from weights a little off those of the one before."""

    started = 0

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        StartsDifferently.started += 1
        with torch.no_grad():
            for parameter in _parameters(self):
                parameter.mul_(1 + 1e-3 * StartsDifferently.started)
        return info


_FAR = 100


class _Turned(ReferenceInferenceEngine):
    """Sees other positions than there are."""

    def seen(self, positions: Tensor) -> Tensor:
        """Return what the model is told."""
        return positions

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start, and stand before the rotary embedding."""
        info = await super().start(spec)
        rotary = self.running.stage.model.model.rotary_emb
        forward = rotary.forward

        def other(hidden: Tensor, position_ids: Tensor) -> Any:  # Any: cosines and sines
            return forward(hidden, self.seen(position_ids))

        rotary.forward = other
        return info


breaks_lengths = breaking(_OF, _Turned, side="infer")
LENGTHS_ROWS = breaks_lengths.rows(
    row("PositionsStopCounting", "Every token beyond the first hundred is at the hundredth place.", "pair.gap.lengths",
        row="logprob-gap", seen=lambda positions: positions.clamp(max=_FAR)),
    row("SkipsAPlaceFarOut",
        "From the hundredth token on all places are one further: a table that is off by one at a page's end.",
        "pair.gap.lengths", row="logprob-gap",
        seen=lambda positions: positions + (positions >= _FAR).to(positions.dtype)),
)  # fmt: skip


@breaks("forward", "pair.gap.lengths", row="logprob-gap")
def CoarseFarOut(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """The trainer's log-probs beyond the hundredth token of a sequence went through bfloat16."""
    told = original()
    if Output.LOGPROBS not in outputs:
        return told
    logprobs = told.tokens["logprobs"].clone()
    ends = batch.cu_seqlens.tolist()
    for start, stop in pairwise(ends):
        far = slice(min(start + _FAR, stop), stop)
        logprobs[far] = logprobs[far].to(torch.bfloat16).to(logprobs.dtype)
    return told.with_tokens(logprobs=logprobs)
