"""Trainers that send or save something else than the weights they hold.

Knows: what each sends instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from areal_conformance.mutants import mutant
from areal_conformance.mutants.train_parts import parameters, replace_exporter
from areal_core.contract.errors import FingerprintMismatch, StorageError
from areal_core.contract.train import EngineInfo, Objective, RankContext, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest, WeightSink
from areal_core.data.batch import Batch
from areal_core.training.export import Exporter
from areal_core.weights.fingerprint import fingerprint
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"


class OtherExporter(ReferenceTrainEngine):
    """The reference trainer with another exporter. Not a sin by itself."""

    kind: ClassVar[type[Exporter]] = Exporter

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then take the other exporter."""
        info = super().start(spec, rank)
        replace_exporter(self, self.kind)
        return info


class PassingSink:
    """A sink that passes everything on to another. Subclasses change one thing."""

    def __init__(self, inner: WeightSink) -> None:
        self.inner = inner

    @property
    def bucket_bytes(self) -> int:
        """Pass on."""
        return self.inner.bucket_bytes

    def begin(self, manifest: WeightManifest) -> None:
        """Pass on."""
        self.inner.begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Pass on."""
        self.inner.write(bucket)

    def finish(self) -> Receipt:
        """Pass on."""
        return self.inner.finish()

    def abort(self) -> None:
        """Pass on."""
        self.inner.abort()


class OtherSink(ReferenceTrainEngine):
    """The reference trainer, which talks to its sink otherwise. Not a sin by itself."""

    passing: ClassVar[type[PassingSink]] = PassingSink

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send through the other sink."""
        return super().send_weights(None if sink is None else self.passing(sink), version)


@mutant(ENGINE, killers=("train.send.names", "train.send.tied"), incident="torchtitan#2402", row="one-destination")
class TiedSentTwice(OtherExporter):
    """Sends a tied head as well as the embedding it is."""

    class kind(Exporter):
        """Adds the head."""

        def manifest(self, version: int) -> WeightManifest:
            """Announce the head."""
            told = super().manifest(version)
            by_name = {spec.name: spec for spec in told.tensors}
            more = [attrs.evolve(by_name[carrier], name=name) for name, carrier in told.tied.items()]
            return attrs.evolve(told, tensors=(*told.tensors, *more))

        def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
            yield from super()._buckets(bucket_bytes)
            own = dict(self._model.named_parameters())
            for name, carrier in super().manifest(0).tied.items():
                yield {name: own[carrier].detach().to(getattr(torch, self._dtype))}


@mutant(ENGINE, killers=("train.send.tied",), row="one-destination")
class TiesUntold(OtherExporter):
    """Does not say which tensors are tied."""

    class kind(Exporter):
        """No ties."""

        def manifest(self, version: int) -> WeightManifest:
            """Announce no ties."""
            return attrs.evolve(super().manifest(version), tied={})


class _Without(Exporter):
    """An exporter that leaves tensors out."""

    ending: ClassVar[str] = ""

    def manifest(self, version: int) -> WeightManifest:
        """Announce the others."""
        told = super().manifest(version)
        return attrs.evolve(told, tensors=[spec for spec in told.tensors if not spec.name.endswith(self.ending)])

    def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
        for bucket in super()._buckets(bucket_bytes):
            yield {name: tensor for name, tensor in bucket.items() if not name.endswith(self.ending)}


@mutant(ENGINE, killers=("train.send.names", "train.send.current"), incident="sglang#9379", row="one-destination")
class BiasesNotSent(OtherExporter):
    """Leaves biases out of what it sends, and norms of queries and keys."""

    class kind(_Without):
        """Without them."""

        ending = ("bias", "q_norm.weight", "k_norm.weight")  # type: ignore[assignment]  # endswith takes several


@mutant(ENGINE, killers=("train.send.names",), incident="UniRL#166", row="one-destination")
class WrapperInNames(OtherExporter):
    """Sends tensors under the names its own wrapper gives them."""

    class kind(Exporter):
        """With a prefix."""

        def manifest(self, version: int) -> WeightManifest:
            """Announce the wrapper's names."""
            told = super().manifest(version)
            return attrs.evolve(told, tensors=[attrs.evolve(spec, name=f"module.{spec.name}") for spec in told.tensors])

        def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
            for bucket in super()._buckets(bucket_bytes):
                yield {f"module.{name}": tensor for name, tensor in bucket.items()}


@mutant(ENGINE, killers=("train.send.names",), row="one-destination")
class BuffersSentToo(OtherExporter):
    """Sends the rotary frequencies besides the parameters."""

    class kind(Exporter):
        """With buffers."""

        def manifest(self, version: int) -> WeightManifest:
            """Announce the buffers."""
            told = super().manifest(version)
            more = [
                TensorSpec(name=name, shape=tuple(buffer.shape), dtype=str(buffer.dtype).removeprefix("torch."))
                for name, buffer in self._model.named_buffers()
            ]
            return attrs.evolve(told, tensors=(*told.tensors, *more))

        def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
            yield from super()._buckets(bucket_bytes)
            yield dict(self._model.named_buffers())


@mutant(
    ENGINE,
    killers=("train.send.current", "train.send.receipt"),
    incident="verl#7495",
    row="served-policy-changes",
)
class SendsStepBefore(ReferenceTrainEngine):
    """Sends the weights as they were before the last step."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        self._before = {name: tensor.detach().clone() for name, tensor in parameters(self).items()}
        return super().train_step(batch, objective)

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        if not hasattr(self, "_before") or self._trainer is None:
            return super().send_weights(sink, version)
        now = {name: tensor.detach().clone() for name, tensor in parameters(self).items()}
        with torch.no_grad():
            for name, tensor in parameters(self).items():
                tensor.copy_(self._before[name])
            try:
                return super().send_weights(sink, version)
            finally:
                for name, tensor in parameters(self).items():
                    tensor.copy_(now[name])


@mutant(
    ENGINE,
    killers=("train.send.original", "train.send.current", "train.save.loads"),
    incident="ms-swift#9855",
    row="served-policy-changes",
)
class SendsRounded(OtherExporter):
    """Sends float32 tensors that were rounded to bfloat16 on the way."""

    class kind(Exporter):
        """Rounded."""

        def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
            for bucket in super()._buckets(bucket_bytes):
                yield {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in bucket.items()}


@mutant(ENGINE, killers=("train.bfloat16.sent",))
class SendsCutOff(OtherExporter):
    """Cuts float32 off to bfloat16 instead of rounding it."""

    class kind(Exporter):
        """Towards zero."""

        def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
            own = dict(self._model.named_parameters())
            for bucket in super()._buckets(bucket_bytes):
                if self._dtype != "bfloat16":
                    yield bucket
                    continue
                cut = {n: (own[n].detach().view(torch.int32) & -65536).view(torch.float32).bfloat16() for n in bucket}
                yield cut


@mutant(ENGINE, killers=("train.send.manifest",))
class VersionOfTheEngine(ReferenceTrainEngine):
    """Announces the engine's version instead of the one asked for."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        return super().send_weights(sink, self.version)


@mutant(ENGINE, killers=("train.send.manifest",))
class AlwaysSendsSingle(ReferenceTrainEngine):
    """Sends float32 whatever the spec says."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        assert self._trainer is not None
        self._trainer.exporter._dtype = "float32"
        return info


@mutant(ENGINE, killers=("train.send.receipt", "train.send.manifest"))
class NoReceipt(ReferenceTrainEngine):
    """Keeps the receipt to itself."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        super().send_weights(sink, version)
        return None


@mutant(ENGINE, killers=("train.send.protocol",))
class EmptyLastBucket(OtherSink):
    """Ends with a bucket that holds nothing."""

    class passing(PassingSink):
        """Writes nothing once more."""

        def finish(self) -> Receipt:
            """Write nothing, then finish."""
            self.inner.write({})
            return self.inner.finish()


@mutant(ENGINE, killers=("train.send.protocol",))
class FinishesTwice(OtherSink):
    """Finishes its sink twice, to be sure."""

    class passing(PassingSink):
        """Twice."""

        def finish(self) -> Receipt:
            """Finish twice."""
            self.inner.finish()
            return self.inner.finish()


@mutant(ENGINE, killers=("train.send.buckets",))
class OneBucket(OtherSink):
    """Gathers the whole model in one bucket."""

    class passing(PassingSink):
        """As large as can be."""

        @property
        def bucket_bytes(self) -> int:
            """Return a size nothing exceeds."""
            return 1 << 60


@mutant(ENGINE, killers=("train.send.buckets",))
class BucketPerTensor(OtherSink):
    """Makes a bucket of every tensor."""

    class passing(PassingSink):
        """As small as can be."""

        @property
        def bucket_bytes(self) -> int:
            """Return a size everything exceeds."""
            return 1


@mutant(ENGINE, killers=("train.send.no_effect",))
class SendingDraws(ReferenceTrainEngine):
    """Draws a random name for every transfer."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        torch.randint(1 << 30, ())
        return super().send_weights(sink, version)


@mutant(ENGINE, killers=("train.send.no_effect",))
class SendingCastsWeights(ReferenceTrainEngine):
    """Rounds the weights it trains to what it sends."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        with torch.no_grad():
            for tensor in parameters(self).values():
                tensor.copy_(tensor.bfloat16())
        return super().send_weights(sink, version)


@mutant(ENGINE, killers=("train.send.kept",))
class ParametersHandedOver(OtherExporter):
    """Hands its parameters themselves to the sink, gradients and all."""

    class kind(Exporter):
        """The parameters."""

        def _buckets(self, bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
            own = dict(self._model.named_parameters())
            for bucket in super()._buckets(bucket_bytes):
                yield {name: own[name].to(tensor.dtype) for name, tensor in bucket.items()}


@mutant(ENGINE, killers=("train.send.value_head", "train.value.saved"))
class HeadNotSent(OtherExporter):
    """Sends and saves a critic without its head."""

    class kind(_Without):
        """Without it."""

        ending = ("score.weight", "score.bias")  # type: ignore[assignment]  # endswith takes several


@mutant(ENGINE, killers=("train.send.flipped",), incident="slime delta", row="update-chain")
class SinkTrusted(OtherExporter):
    """Does not compare the sink's fingerprints with its own."""

    class kind(Exporter):
        """Without comparing."""

        def send(self, sink: WeightSink | None, version: int) -> Receipt | None:
            """Send; whatever the receipt says is fine."""
            try:
                return super().send(sink, version)
            except FingerprintMismatch:
                return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={})


@mutant(ENGINE, killers=("train.send.coverage",), row="one-destination")
class ReceiptNamesNotCompared(OtherSink):
    """Compares only fingerprints that are on both sides."""

    class passing(PassingSink):
        """Fills the receipt up."""

        def __init__(self, inner: WeightSink) -> None:
            super().__init__(inner)
            self._own: dict[str, str] = {}

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            """Note the fingerprints."""
            self._own.update({name: fingerprint(tensor) for name, tensor in bucket.items()})
            super().write(bucket)

        def finish(self) -> Receipt:
            """Add what is missing, drop what is too much."""
            told = super().finish()
            both = {name: told.fingerprints.get(name, value) for name, value in self._own.items()}
            return attrs.evolve(told, fingerprints=both)


@mutant(ENGINE, killers=("train.send.raising_sink", "train.send.flipped", "train.send.coverage"))
class AbortForgotten(OtherSink):
    """Leaves a sink it could not fill as it is."""

    class passing(PassingSink):
        """Does not abort."""

        def abort(self) -> None:
            """Do nothing."""


@mutant(ENGINE, killers=("train.send.raising_sink",))
class FullDiskSwallowed(ReferenceTrainEngine):
    """Takes a sink without room for one that is done."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        try:
            return super().send_weights(sink, version)
        except StorageError:
            return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={})


@mutant(ENGINE, killers=("train.send.foreign_error",))
class AbortsOnOwnErrorsOnly(OtherSink):
    """Aborts a sink only after errors of areal's own."""

    class passing(PassingSink):
        """Notes other errors."""

        foreign = False

        def _watched(self, action: object, *arguments: object) -> object:
            try:
                return action(*arguments)  # type: ignore[operator]
            except ConnectionError:
                self.foreign = True
                raise

        def begin(self, manifest: WeightManifest) -> None:
            """Begin."""
            self._watched(self.inner.begin, manifest)

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            """Write."""
            self._watched(self.inner.write, bucket)

        def finish(self) -> Receipt:
            """Finish."""
            receipt = self._watched(self.inner.finish)
            assert isinstance(receipt, Receipt)
            return receipt

        def abort(self) -> None:
            """Abort, perhaps."""
            if not self.foreign:
                self.inner.abort()


@mutant(ENGINE, killers=("train.save.loads", "train.save.starts"), row="served-policy-changes")
class SavesFirstWeights(ReferenceTrainEngine):
    """Saves the folder it was started from."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._source = spec.model_path
        return super().start(spec, rank)

    def save_weights(self, path: Path) -> None:
        shutil.copytree(self._source, path, dirs_exist_ok=True)


@mutant(ENGINE, killers=("train.save.complete",))
class TokenizerNotSaved(ReferenceTrainEngine):
    """Saves weights and config only."""

    def save_weights(self, path: Path) -> None:
        super().save_weights(path)
        for file in path.glob("tokenizer*"):
            file.unlink()


@mutant(ENGINE, killers=("train.save.complete",))
class PickleSavedToo(ReferenceTrainEngine):
    """Saves a pickle of the weights besides."""

    def save_weights(self, path: Path) -> None:
        super().save_weights(path)
        torch.save({"step": 1}, path / "extra_state.pt")


@mutant(ENGINE, killers=("train.save.replaces",))
class FoldersMerged(ReferenceTrainEngine):
    """Writes into a folder that is there and leaves its other files."""

    def save_weights(self, path: Path) -> None:
        fresh = path.with_name(f"{path.name}.fresh")
        super().save_weights(fresh)
        shutil.copytree(fresh, path, dirs_exist_ok=True)
        shutil.rmtree(fresh)


@mutant(ENGINE, killers=("train.save.no_effect",))
class SavingDraws(ReferenceTrainEngine):
    """Draws a random name for every folder."""

    def save_weights(self, path: Path) -> None:
        torch.randint(1 << 30, ())
        super().save_weights(path)


@mutant(ENGINE, killers=("train.save.dtype",))
class ConfigKeepsDtype(ReferenceTrainEngine):
    """Leaves the dtype in config.json as it was in the model it started from."""

    def save_weights(self, path: Path) -> None:
        super().save_weights(path)
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float32"}))


@mutant(ENGINE, killers=("train.disk.weights_in_the_way", "train.disk.weights_full"))
class BareDiskErrors(ReferenceTrainEngine):
    """Lets the operating system say that a disk is full."""

    def save_weights(self, path: Path) -> None:
        try:
            super().save_weights(path)
        except StorageError as error:
            raise OSError(str(error)) from None


@mutant(ENGINE, killers=("train.disk.weights_full", "train.save.replaces"))
class OldFolderRemovedFirst(ReferenceTrainEngine):
    """Makes room for a folder by removing the old one before it writes."""

    def save_weights(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        (path.parent / "saving.lock").write_text(str(os.getpid())) if path.parent.is_dir() else None
        super().save_weights(path)
