"""Broken transports: what arrives is not what was sent, or other tensors than announced are taken.

Knows: one defect each.
Does not know: which check sees it, except for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt, TensorSpec, WeightManifest
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants.rows import Original, before, breaking, row
from areal_proof.mutants.weight_parts import PassingSink, PassingSource
from areal_proof.second.transport import SecondTransport

breaks = breaking("transport/disk", DiskTransport)
breaks_second = breaking("transport/second", SecondTransport)
breaks_shm = breaking("transport/shm", ShmTransport)


class _Altering(DiskTransport):
    """Alters every tensor on arrival."""

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def source(self, offer: Offer) -> PassingSource:  # type: ignore[override]
        source = PassingSource(super().source(offer))
        source.alter = self.alter  # type: ignore[method-assign]
        return source


@breaks("sink", "transport.bytes.sets", "transport.bytes.shapes", "transport.bytes.overlap")
def IgnoresStrides(original: Original) -> Any:
    """Stores a transposed matrix in the order of its memory."""

    class Sink(PassingSink):
        def write(self, bucket: Mapping[str, Tensor]) -> None:
            turned = {
                name: t.t().contiguous().reshape(t.shape) if t.ndim == 2 and not t.is_contiguous() else t
                for name, t in bucket.items()
            }
            super().write(turned)

    return Sink(original())


@breaks("sink", "transport.bytes.shapes", "transport.bytes.sets", "transport.coverage.missing")
def SkipsEmptyTensors(original: Original) -> Any:
    """A tensor without elements is taken for one that need not be sent."""

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            specs = tuple(spec for spec in manifest.tensors if 0 not in spec.shape)
            super().begin(attrs.evolve(manifest, tensors=specs))

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            super().write({name: tensor for name, tensor in bucket.items() if tensor.numel()})

    return Sink(original())


@breaks("source", "transport.bytes.nothing")
def NothingIsTooLittle(original: Original) -> Any:
    """A version without tensors is taken for one that was never sent."""
    source = PassingSource(original())
    if not source.manifest.tensors:
        raise WeightSyncError("the version is empty")
    return source


@breaks_second("source", "transport.bytes.buckets", "transport.bytes.full_bucket")
def LosesLastBucket(original: Original) -> Any:
    """When there is more than one bucket, the last, short one is not yielded."""

    class Source(PassingSource):
        def buckets(self) -> Iterator[Mapping[str, Tensor]]:
            every = list(super().buckets())
            yield from every[:-1] if len(every) > 1 else every

    return Source(original())


@breaks("sink", "transport.bytes.overlap")
def SharesWhatIsShared(original: Original) -> Any:
    """Tensors that begin at one address are stored once: the first of a bucket stands for all."""

    class Sink(PassingSink):
        def write(self, bucket: Mapping[str, Tensor]) -> None:
            first: dict[int, Tensor] = {}
            kept = {}
            for name, tensor in bucket.items():
                other = first.setdefault(tensor.data_ptr(), tensor) if tensor.numel() else tensor
                enough = other.numel() >= tensor.numel() and other.dtype == tensor.dtype
                kept[name] = other.reshape(-1)[: tensor.numel()].reshape(tensor.shape) if enough else tensor
            super().write(kept)

    return Sink(original())


@breaks_shm("sink", "transport.sink.copies")
def CopiesLater(original: Original) -> Any:
    """Keeps the sender's tensors and copies them when it is told to finish."""

    class Sink(PassingSink):
        def __init__(self, inner: object) -> None:
            super().__init__(inner)
            self.kept: dict[str, Tensor] = {}

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            self.kept.update(bucket)

        def finish(self) -> Receipt:
            self.inner.write(self.kept)
            return super().finish()

    return Sink(original())


@breaks("sink", "transport.names.any", row="one-destination")
def NamesBecomePaths(original: Original) -> Any:
    """A slash in a tensor's name is replaced, as in a file's."""

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            specs = tuple(attrs.evolve(spec, name=spec.name.replace("/", ".")) for spec in manifest.tensors)
            super().begin(attrs.evolve(manifest, tensors=specs))

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            super().write({name.replace("/", "."): tensor for name, tensor in bucket.items()})

    return Sink(original())


class _Announcing(DiskTransport):
    """Announces something else to receivers."""

    def announce(self, manifest: WeightManifest) -> WeightManifest:
        return manifest

    def source(self, offer: Offer) -> PassingSource:  # type: ignore[override]
        source = super().source(offer)
        source._manifest = self.announce(source.manifest)
        return PassingSource(source)


class _Receipting(DiskTransport):
    """Gives another receipt."""

    def receipt(self, receipt: Receipt) -> Receipt:
        return receipt

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        sink = PassingSink(super().sink(offer))
        sink.finish = lambda: self.receipt(sink.inner.finish())  # type: ignore[method-assign]
        return sink


ROWS = breaks.rows(
    row("RoundsFloats", "Float32 passes through bfloat16 on the way.", "transport.bytes.dtypes",
        "transport.bytes.device", "transport.machine", base=_Altering,
        alter=lambda tensor: tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.dtype is torch.float32 else tensor),
    row("ForgetsNegativeZero", "Adds zero to what it reads: -0.0 becomes 0.0.", "transport.bytes.dtypes",
        base=_Altering, alter=lambda tensor: tensor + 0.0 if tensor.is_floating_point() else tensor),
    row("ScalarsBecomeVectors", "A tensor without dimensions arrives with one.", "transport.bytes.shapes",
        "transport.bytes.buckets", base=_Altering,
        alter=lambda tensor: tensor.reshape(-1) if tensor.ndim == 0 else tensor),
    row("LosesTies", "Receivers are not told which tensors are tied.", "transport.manifest.whole",
        incident="torchtitan#2402", row="one-destination", base=_Announcing,
        announce=lambda manifest: attrs.evolve(manifest, tied={})),
    row("SortsNames", "The manifest arrives in the order of the alphabet.", "transport.manifest.whole",
        base=_Announcing,
        announce=lambda manifest: attrs.evolve(manifest, tensors=tuple(sorted(manifest.tensors,
            key=lambda spec: spec.name)))),
    row("CountsTensors", "The receipt's byte count is the number of tensors.", "transport.receipt.true",
        base=_Receipting, receipt=lambda receipt: attrs.evolve(receipt, num_bytes=len(receipt.fingerprints))),
    row("ProvesNothing", "The receipt holds the same fingerprint for every tensor.", "transport.receipt.true",
        "transport.process.crosses", base=_Receipting,
        receipt=lambda receipt: attrs.evolve(receipt, fingerprints=dict.fromkeys(receipt.fingerprints, "0" * 32))),
    row("ProvesTiesToo", "The receipt names a tensor that was not sent.", "transport.receipt.true", base=_Receipting,
        receipt=lambda receipt: attrs.evolve(receipt, fingerprints={**receipt.fingerprints,
            "lm_head.weight": "0" * 32})),
)  # fmt: skip


class _Lenient(DiskTransport):
    """Makes sinks that let a sender do what `Sink` lets it."""

    Sink: type[LenientSink]

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        return self.Sink(super().sink(offer))


class LenientSink(PassingSink):
    """Remembers what was announced and written."""

    def __init__(self, inner: Any) -> None:  # Any: the transport's own class
        super().__init__(inner)
        self.specs: dict[str, TensorSpec] = {}
        self.written: dict[str, Tensor] = {}

    def begin(self, manifest: WeightManifest) -> None:
        """Remember it and pass it on."""
        self.specs = {spec.name: spec for spec in manifest.tensors}
        super().begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Remember it and pass it on."""
        super().write(bucket)
        self.written.update(bucket)


breaks_coverage = breaking("transport/disk", _Lenient, part=("Sink", LenientSink))


@breaks_coverage("write", "transport.coverage.shape")
def ReshapesSilently(original: Original, self: LenientSink, bucket: Mapping[str, Tensor]) -> None:
    """A tensor with as many elements as announced is reshaped to fit."""
    fitting = {}
    for name, tensor in bucket.items():
        spec = self.specs.get(name)
        same = spec is not None and tensor.numel() == torch.Size(spec.shape).numel()
        fitting[name] = tensor.reshape(spec.shape) if same and spec else tensor
    original(fitting)


COVERAGE_ROWS = breaks_coverage.rows(
    row("DropsStrangers", "A tensor nobody announced is left out without a word.", "transport.coverage.unannounced",
        incident="UniRL#166", row="one-destination",
        write=lambda original, self, bucket: original({name: tensor for name, tensor in bucket.items()
            if name in self.specs})),
    row("CastsSilently", "A tensor of another dtype is cast to the one announced.", "transport.coverage.dtype",
        write=lambda original, self, bucket: original({n: t.to(getattr(torch, self.specs[n].dtype)) if n in self.specs
            else t for n, t in bucket.items()})),
    row("FirstWriteWins", "A tensor that comes again is ignored.", "transport.coverage.twice", row="one-destination",
        write=lambda original, self, bucket: original({name: tensor for name, tensor in bucket.items()
            if name not in self.written})),
    row("FillsWithZeros", "A tensor that never came is sent as zeros.", "transport.coverage.missing",
        "transport.machine", row="one-destination",
        finish=before(lambda self: self.inner.write({n: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for n,
            s in self.specs.items() if n not in self.written}))),
)  # fmt: skip


@breaks_coverage("begin", "transport.coverage.manifest")
def TidiesManifests(original: Original, manifest: WeightManifest) -> None:
    """A manifest with a name twice, or tied to nothing, is mended in silence."""
    specs = tuple({spec.name: spec for spec in reversed(manifest.tensors)}.values())[::-1]
    names = {spec.name for spec in specs}
    tied = {n: c for n, c in manifest.tied.items() if c in names and n not in names}
    original(attrs.evolve(manifest, tensors=specs, tied=tied))


breaks_lenient = breaking("transport/disk", _Lenient)


@breaks_lenient("sink", "transport.version.announced")
def AnnouncesWhatWasOffered(self: _Lenient, offer: Offer) -> Any:
    """A sender that announces another version is believed to mean the one offered."""

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            super().begin(attrs.evolve(manifest, version=offer.version))

    return Sink(DiskTransport.sink(self, offer))


@breaks_lenient("sink", "transport.order.begin", Sink=LenientSink)
def BeginsAgain(original: Original, self: Any, offer: Offer) -> Any:
    """A second `begin` starts over, on a sink that has begun."""
    make = original

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            try:
                super().begin(manifest)
            except WeightSyncError:
                self.inner = DiskTransport.sink(outer, offer)
                super().begin(manifest)

    outer = self
    return Sink(make(offer).inner)
