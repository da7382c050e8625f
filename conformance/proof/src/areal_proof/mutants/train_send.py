"""Trainers that send something else than the weights they hold, or treat their sink badly.

Knows: what each sends instead, and does to a sink.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import FingerprintMismatch, StorageError
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest, WeightSink
from areal_core.weights.tensors import fingerprint
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, gives, on, row, then
from areal_proof.mutants.train_parts import OtherExporter, parameters
from areal_proof.mutants.weight_parts import PassingSink
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.export import Exporter, FolderWeights, Sendable

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
breaks_other_exporter = breaking(ENGINE, OtherExporter, part=("kind", Exporter))


def _model(exporter: Exporter) -> Any:
    """Return the transformers model of an exporter. Any: not typed here."""
    assert isinstance(exporter.weights, FolderWeights)
    return exporter.weights.model


def _parameters(exporter: Exporter) -> dict[str, Tensor]:
    return dict(_model(exporter).named_parameters())


@mutant(ENGINE, killers=("train.send.names", "train.send.tied"), incident="torchtitan#2402", row="one-destination")
class TiedSentTwice(OtherExporter):
    """Sends a tied head as well as the embedding it is."""

    class kind(Exporter):
        def manifest(self, version: int) -> WeightManifest:
            told = super().manifest(version)
            by_name = {spec.name: spec for spec in told.tensors}
            more = [attrs.evolve(by_name[carrier], name=name) for name, carrier in told.tied.items()]
            return attrs.evolve(told, tensors=(*told.tensors, *more))

        def buckets(self, bucket_bytes: int, weights: Sendable) -> Iterator[dict[str, Tensor]]:
            yield from super().buckets(bucket_bytes, weights)
            own = _parameters(self)
            for name, carrier in super().manifest(0).tied.items():
                yield {name: own[carrier].detach().to(getattr(torch, self.dtype))}


class _Without(Exporter):
    """An exporter that leaves tensors out."""

    ending: ClassVar[str] = ""

    def manifest(self, version: int) -> WeightManifest:
        """Announce the others."""
        told = super().manifest(version)
        return attrs.evolve(told, tensors=[spec for spec in told.tensors if not spec.name.endswith(self.ending)])

    def buckets(self, bucket_bytes: int, weights: Sendable) -> Iterator[dict[str, Tensor]]:
        for bucket in super().buckets(bucket_bytes, weights):
            yield {name: tensor for name, tensor in bucket.items() if not name.endswith(self.ending)}


@breaks_other_exporter("buckets", "train.send.names", incident="UniRL#166", row="one-destination",
    manifest=gives(tensors=lambda result: [
        attrs.evolve(spec, name=f"module.{spec.name}") for spec in result.tensors]))  # fmt: skip
def WrapperInNames(original: Original) -> Any:
    """Sends tensors under the names its own wrapper gives them."""
    for bucket in original():
        yield {f"module.{name}": tensor for name, tensor in bucket.items()}


@breaks_other_exporter("buckets", "train.send.names", row="one-destination",
    manifest=gives(tensors=lambda result, self: (*result.tensors, *[TensorSpec(name=name, shape=tuple(buffer.shape),
        dtype=str(buffer.dtype).removeprefix("torch."))
        for name, buffer in _model(self).named_buffers()])))  # fmt: skip
def BuffersSentToo(original: Original, self: Any) -> Any:
    """Sends the rotary frequencies besides the parameters."""
    yield from original()
    yield dict(_model(self).named_buffers())


@breaks("send_weights", "train.send.current", "train.send.receipt", incident="verl#7495", row="served-policy-changes",
        train_step=before(lambda self: setattr(self, "_before", {name: tensor.detach().clone() for name,
            tensor in parameters(self).items()})))  # fmt: skip
def SendsStepBefore(original: Original, self: Any) -> Any:
    """Sends the weights as they were before the last step."""
    if not hasattr(self, "_before") or self.trainer is None:
        return original()
    now = {name: tensor.detach().clone() for name, tensor in parameters(self).items()}
    with torch.no_grad():
        for name, tensor in parameters(self).items():
            tensor.copy_(self._before[name])
        try:
            return original()
        finally:
            for name, tensor in parameters(self).items():
                tensor.copy_(now[name])


@breaks_other_exporter("buckets", "train.send.original", "train.send.current", "train.save.loads",
    incident="ms-swift#9855", row="served-policy-changes")  # fmt: skip
def SendsRounded(original: Original) -> Any:
    """Sends float32 tensors that were rounded to bfloat16 on the way."""
    for bucket in original():
        yield {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in bucket.items()}


@breaks_other_exporter("buckets", "train.bfloat16.sent")
def SendsCutOff(original: Original, self: Exporter) -> Any:
    """Cuts float32 off to bfloat16 instead of rounding it."""
    own = _parameters(self)
    for bucket in original():
        if self.dtype != "bfloat16":
            yield bucket
            continue
        cut = {n: (own[n].detach().view(torch.int32) & -65536).view(torch.float32).bfloat16() for n in bucket}
        yield cut


@breaks("send_weights", "train.send.receipt", "train.send.manifest")
def NoReceipt(original: Original) -> Any:
    """Keeps the receipt to itself."""
    original()
    return None


@breaks("send_weights", "train.send.no_effect")
def SendingCastsWeights(original: Original, self: ReferenceTrainEngine) -> Any:
    """Rounds the weights it trains to what it sends."""
    with torch.no_grad():
        for tensor in parameters(self).values():
            tensor.copy_(tensor.bfloat16())
    return original()


@breaks_other_exporter("buckets", "train.send.kept")
def ParametersHandedOver(original: Original, self: Exporter) -> Any:
    """Hands its parameters themselves to the sink, gradients and all."""
    own = _parameters(self)
    for bucket in original():
        yield {name: own[name].to(tensor.dtype) for name, tensor in bucket.items()}


ROWS = breaks.rows(
    row("BiasesNotSent", "Leaves biases out of what it sends, and norms of queries and keys.", "train.send.names",
        "train.send.current", incident="sglang#9379", row="one-destination", base=OtherExporter,
        part=("kind", _Without), ending=("bias", "q_norm.weight", "k_norm.weight")),
    row("VersionOfTheEngine", "Announces the engine's version instead of the one asked for.", "train.send.manifest",
        send_weights=lambda original, self, sink: original(sink, self.version)),
    row("AlwaysSendsSingle", "Sends float32 whatever the spec says.", "train.send.manifest",
        start=then(lambda self: setattr(self.trainer.exporter, "dtype", "float32"))),
    row("SendingDraws", "Draws a random name for every transfer.", "train.send.no_effect",
        send_weights=before(lambda: torch.randint(1 << 30, ()))),
    row("HeadNotSent", "Sends and saves a critic without its head.", "train.send.value_head", "train.value.saved",
        base=OtherExporter, part=("kind", _Without), ending=("score.weight", "score.bias")),
)  # fmt: skip


OTHER_EXPORTER_ROWS = breaks_other_exporter.rows(
    row("TiesUntold", "Does not say which tensors are tied.", "train.send.tied", row="one-destination",
        manifest=gives(tied=dict)),
    row("SinkTrusted", "Does not compare the sink's fingerprints with its own.", "train.send.flipped",
        incident="slime delta", row="update-chain",
        send=catches(FingerprintMismatch, lambda version: Receipt(version=version, num_bytes=0, seconds=0.0,
            fingerprints={}))),
)  # fmt: skip


class OtherSink(ReferenceTrainEngine):
    """The reference trainer, which talks to its sink otherwise. No defect by itself."""

    passing: ClassVar[type[PassingSink]] = PassingSink

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send through the other sink."""
        return super().send_weights(None if sink is None else self.passing(sink), version)


@breaks("__init__", "train.send.coverage", row="one-destination",
        write=before(lambda self, bucket: self._own.update({name: fingerprint(tensor) for name,
            tensor in bucket.items()})),
        finish=gives(fingerprints=lambda result, self: {name: result.fingerprints.get(name, value) for name,
            value in self._own.items()}), base=OtherSink, part=("passing", PassingSink))  # fmt: skip
def ReceiptNamesNotCompared(original: Original, self: Any) -> None:
    """Compares only fingerprints that are on both sides."""
    original()
    self._own = {}


_FOREIGN = on(ConnectionError, lambda self: setattr(self, "foreign", True))


SEND_SINKS_ROWS = breaks.rows(
    row("EmptyLastBucket", "Ends with a bucket that holds nothing.", "train.send.protocol", base=OtherSink,
        part=("passing", PassingSink), finish=before(lambda self: self.inner.write({}))),
    row("FinishesTwice", "Finishes its sink twice, to be sure.", "train.send.protocol", base=OtherSink,
        part=("passing", PassingSink), finish=before(lambda self: self.inner.finish())),
    row("FullDiskSwallowed", "Takes a sink without room for one that is done.", "train.send.raising_sink",
        send_weights=catches(StorageError, lambda version: Receipt(version=version, num_bytes=0, seconds=0.0,
            fingerprints={}))),
    row("OneBucket", "Gathers the whole model in one bucket.", "train.send.buckets", base=OtherSink,
        part=("passing", PassingSink), bucket_bytes=1 << 60),
    row("BucketPerTensor", "Makes a bucket of every tensor.", "train.send.buckets", base=OtherSink,
        part=("passing", PassingSink), bucket_bytes=1),
    row("AbortForgotten", "Leaves a sink it could not fill as it is.", "train.send.raising_sink",
        "train.send.flipped", "train.send.coverage", base=OtherSink, part=("passing", PassingSink),
        abort=lambda: None),
    row("AbortsOnOwnErrorsOnly", "Aborts a sink only after errors of areal's own.", "train.send.foreign_error",
        base=OtherSink, part=("passing", PassingSink), foreign=False,
        begin=_FOREIGN, write=_FOREIGN, finish=_FOREIGN,
        abort=lambda original, self: None if self.foreign else original()),
)  # fmt: skip
