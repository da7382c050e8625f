"""Broken pairs, the trainer's side: what is sent, or said of tokens, is not what the trainer holds.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import StorageError
from areal_core.contract.train import EngineInfo, Output, RankContext, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_core.weights.bucketing import buckets
from areal_proof.mutants import mutant
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.testing.memory_weights import MemorySink

_OF = "pair/reference+reference"


def _parameters(engine: Any) -> Iterator[Tensor]:
    """Return the parameters an engine trains. Any: its private parts are not typed for others."""
    parameters: Iterator[Tensor] = engine._trainer.model.packed.hf.parameters()
    return parameters


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


@mutant(
    _OF,
    side="train",
    killers=("pair.update.witness", "pair.update.changes_policy", "pair.run.processes"),
    incident="verl#7495",
    row="served-policy-changes",
)
class SendsTheBase(_Resending):
    """Every update sends the weights the trainer started with."""

    first: Mapping[str, Tensor] | None = None

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        self.first = self.held().tensors
        return info

    def choose(self, kept: MemorySink) -> Mapping[str, Tensor]:
        assert self.first is not None
        return self.first


@mutant(_OF, side="train", killers=("pair.update.witness",), row="served-policy-changes")
class SendsOneStepLate(_Resending):
    """An update sends what the update before should have sent."""

    last: Mapping[str, Tensor] | None = None

    def choose(self, kept: MemorySink) -> Mapping[str, Tensor]:
        sent, self.last = self.last or kept.tensors, kept.tensors
        return sent


@mutant(_OF, side="train", killers=("pair.update.witness",), incident="ms-swift#9855", row="served-policy-changes")
class NormsStayBehind(_Resending):
    """The weights of norms are sent as they were first sent."""

    first: Mapping[str, Tensor] | None = None

    def choose(self, kept: MemorySink) -> Mapping[str, Tensor]:
        if self.first is None:
            self.first = {name: torch.ones_like(t) for name, t in kept.tensors.items() if "norm" in name}
        return {name: self.first.get(name, tensor) for name, tensor in kept.tensors.items()}


@mutant(_OF, side="train", killers=("pair.update.witness",))
class SendsThroughBfloat16(_Resending):
    """Weights are rounded to bfloat16 on the way, though both sides hold float32."""

    def choose(self, kept: MemorySink) -> Mapping[str, Tensor]:
        return {name: tensor.to(torch.bfloat16).to(tensor.dtype) for name, tensor in kept.tensors.items()}


@mutant(_OF, side="train", killers=("pair.drift.none",), incident="open-instruct#1473", row="no-drift")
class DriftsWithEachUpdate(ReferenceTrainEngine):
    """Sending moves the weights themselves by one part in a million."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        receipt = super().send_weights(sink, version)
        with torch.no_grad():
            for parameter in _parameters(self):
                parameter.mul_(1 + 1e-6)
        return receipt


@mutant(_OF, side="train", killers=("pair.gap.logprobs",), incident="AReaL#1290", row="logprob-gap")
class ForgetsTheTemperature(ReferenceTrainEngine):
    """The trainer scores tokens at temperature 1, whatever they were sampled at."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        return super().start(attrs.evolve(spec, temperature=1.0), rank)


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


@mutant(_OF, side="train", killers=("pair.gap.packing", "pair.gap.logprobs"), incident="vime#64", row="logprob-gap")
class PackingShows(_Scoring):
    """The log-probs of a sequence depend on how many others are packed with it."""

    def alter(self, batch: Batch, logprobs: Tensor) -> Tensor:
        shift: Tensor = 0.01 * (batch.num_sequences - 1) * batch.tokens["loss_mask"]
        return logprobs - shift


@mutant(_OF, side="train", killers=("pair.gap.logprobs",), row="logprob-gap")
class LastTokenIsApart(_Scoring):
    """The log-prob of the last token of each sequence is that of the token before it."""

    def alter(self, batch: Batch, logprobs: Tensor) -> Tensor:
        told = logprobs.clone()
        for end in batch.cu_seqlens.tolist()[1:]:
            told[end - 1] = logprobs[end - 2]
        return told


@mutant(_OF, side="train", killers=("pair.gap.dtypes",), row="logprob-gap")
class HalfPrecisionIsCold(ReferenceTrainEngine):
    """In bfloat16 tokens are scored at half the temperature."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        shared = 1.0 if spec.dtype == "float32" else 0.5
        return super().start(attrs.evolve(spec, temperature=spec.temperature * shared), rank)


@mutant(_OF, side="train", killers=("pair.update.after_load",))
class SendsWhatItHeldBeforeTheLoad(_Resending):
    """After `load_state` the weights of before are sent."""

    before: Mapping[str, Tensor] | None = None

    def load_state(self, path: Path) -> None:
        self.before = self.held().tensors
        super().load_state(path)

    def choose(self, kept: MemorySink) -> Mapping[str, Tensor]:
        return self.before or kept.tensors


class _Shrugging:
    """A sink whose errors nobody hears of. Any: the transport's own class."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.bucket_bytes = inner.bucket_bytes
        self.begin, self.finish, self.abort = inner.begin, inner.finish, inner.abort

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        try:
            self.inner.write(bucket)
        except StorageError:
            return


@mutant(_OF, side="train", killers=("pair.fault.sender",), incident="TRL#6913", row="dead-peer")
class SwallowsSinkErrors(ReferenceTrainEngine):
    """A bucket the sink could not take is skipped."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        return super().send_weights(_Shrugging(sink), version)


@mutant(_OF, side="train", killers=("pair.fault.sender_spoiled",), row="update-chain")
class BelievesTheSink(_Resending):
    """The sink's receipt is not compared with the tensors sent."""


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
