"""Broken transports: what arrives is not what was sent.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightManifest
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.weight_parts import PassingSink, PassingSource
from areal_proof.second.transport import SecondTransport


class _Altering(DiskTransport):
    """Alters every tensor on arrival."""

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        return tensor

    def source(self, offer: Offer) -> PassingSource:  # type: ignore[override]
        source = PassingSource(super().source(offer))
        source.alter = self.alter  # type: ignore[method-assign]
        return source


@mutant("transport/disk", killers=("transport.bytes.dtypes", "transport.bytes.device", "transport.machine"))
class RoundsFloats(_Altering):
    """Float32 passes through bfloat16 on the way."""

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.dtype is torch.float32 else tensor


@mutant("transport/disk", killers=("transport.bytes.dtypes",))
class ForgetsNegativeZero(_Altering):
    """Adds zero to what it reads: -0.0 becomes 0.0."""

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        return tensor + 0.0 if tensor.is_floating_point() else tensor


@mutant("transport/disk", killers=("transport.bytes.shapes", "transport.bytes.buckets"))
class ScalarsBecomeVectors(_Altering):
    """A tensor without dimensions arrives with one."""

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.reshape(-1) if tensor.ndim == 0 else tensor


@mutant("transport/disk", killers=("transport.bytes.sets", "transport.bytes.shapes", "transport.bytes.overlap"))
class IgnoresStrides(DiskTransport):
    """Stores a transposed matrix in the order of its memory."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def write(self, bucket: Mapping[str, Tensor]) -> None:
                turned = {
                    name: t.t().contiguous().reshape(t.shape) if t.ndim == 2 and not t.is_contiguous() else t
                    for name, t in bucket.items()
                }
                super().write(turned)

        return Sink(super().sink(offer))


@mutant("transport/disk", killers=("transport.bytes.shapes", "transport.bytes.sets", "transport.coverage.missing"))
class SkipsEmptyTensors(DiskTransport):
    """A tensor without elements is taken for one that need not be sent."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def begin(self, manifest: WeightManifest) -> None:
                specs = tuple(spec for spec in manifest.tensors if 0 not in spec.shape)
                super().begin(attrs.evolve(manifest, tensors=specs))

            def write(self, bucket: Mapping[str, Tensor]) -> None:
                super().write({name: tensor for name, tensor in bucket.items() if tensor.numel()})

        return Sink(super().sink(offer))


@mutant("transport/disk", killers=("transport.bytes.nothing",))
class NothingIsTooLittle(DiskTransport):
    """A version without tensors is taken for one that was never sent."""

    def source(self, offer: Offer) -> PassingSource:  # type: ignore[override]
        source = PassingSource(super().source(offer))
        if not source.manifest.tensors:
            raise WeightSyncError("the version is empty")
        return source


@mutant("transport/second", killers=("transport.bytes.buckets", "transport.bytes.full_bucket"))
class LosesLastBucket(SecondTransport):
    """When there is more than one bucket, the last, short one is not yielded."""

    def source(self, offer: Offer) -> PassingSource:  # type: ignore[override]
        class Source(PassingSource):
            def buckets(self) -> Iterator[Mapping[str, Tensor]]:
                every = list(super().buckets())
                yield from every[:-1] if len(every) > 1 else every

        return Source(super().source(offer))


@mutant("transport/disk", killers=("transport.bytes.overlap",))
class SharesWhatIsShared(DiskTransport):
    """Tensors that begin at one address are stored once: the first of a bucket stands for all."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def write(self, bucket: Mapping[str, Tensor]) -> None:
                first: dict[int, Tensor] = {}
                kept = {}
                for name, tensor in bucket.items():
                    other = first.setdefault(tensor.data_ptr(), tensor) if tensor.numel() else tensor
                    enough = other.numel() >= tensor.numel() and other.dtype == tensor.dtype
                    kept[name] = other.reshape(-1)[: tensor.numel()].reshape(tensor.shape) if enough else tensor
                super().write(kept)

        return Sink(super().sink(offer))


@mutant("transport/shm", killers=("transport.sink.copies",))
class CopiesLater(ShmTransport):
    """Keeps the sender's tensors and copies them when it is told to finish."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def __init__(self, inner: object) -> None:
                super().__init__(inner)
                self.kept: dict[str, Tensor] = {}

            def write(self, bucket: Mapping[str, Tensor]) -> None:
                self.kept.update(bucket)

            def finish(self) -> Receipt:
                self.inner.write(self.kept)
                return super().finish()

        return Sink(super().sink(offer))


@mutant("transport/disk", killers=("transport.names.any",), row="one-destination")
class NamesBecomePaths(DiskTransport):
    """A slash in a tensor's name is replaced, as in a file's."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def begin(self, manifest: WeightManifest) -> None:
                specs = tuple(attrs.evolve(spec, name=spec.name.replace("/", ".")) for spec in manifest.tensors)
                super().begin(attrs.evolve(manifest, tensors=specs))

            def write(self, bucket: Mapping[str, Tensor]) -> None:
                super().write({name.replace("/", "."): tensor for name, tensor in bucket.items()})

        return Sink(super().sink(offer))


class _Announcing(DiskTransport):
    """Announces something else to receivers."""

    announce: Callable[[WeightManifest], WeightManifest]

    def source(self, offer: Offer) -> PassingSource:  # type: ignore[override]
        source = super().source(offer)
        source._manifest = self.announce(source.manifest)
        return PassingSource(source)


@mutant("transport/disk", killers=("transport.manifest.whole",), incident="torchtitan#2402", row="one-destination")
class LosesTies(_Announcing):
    """Receivers are not told which tensors are tied."""

    def announce(self, manifest: WeightManifest) -> WeightManifest:
        return attrs.evolve(manifest, tied={})


@mutant("transport/disk", killers=("transport.manifest.whole",))
class SortsNames(_Announcing):
    """The manifest arrives in the order of the alphabet."""

    def announce(self, manifest: WeightManifest) -> WeightManifest:
        return attrs.evolve(manifest, tensors=tuple(sorted(manifest.tensors, key=lambda spec: spec.name)))


class _Receipting(DiskTransport):
    """Gives another receipt."""

    receipt: Callable[[Receipt], Receipt]

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        sink = PassingSink(super().sink(offer))
        sink.finish = lambda: self.receipt(sink.inner.finish())  # type: ignore[method-assign]
        return sink


@mutant("transport/disk", killers=("transport.receipt.true",))
class CountsTensors(_Receipting):
    """The receipt's byte count is the number of tensors."""

    def receipt(self, receipt: Receipt) -> Receipt:
        return attrs.evolve(receipt, num_bytes=len(receipt.fingerprints))


@mutant("transport/disk", killers=("transport.receipt.true", "transport.process.crosses"))
class ProvesNothing(_Receipting):
    """The receipt holds the same fingerprint for every tensor."""

    def receipt(self, receipt: Receipt) -> Receipt:
        return attrs.evolve(receipt, fingerprints=dict.fromkeys(receipt.fingerprints, "0" * 32))


@mutant("transport/disk", killers=("transport.receipt.true",))
class ProvesTiesToo(_Receipting):
    """The receipt names a tensor that was not sent."""

    def receipt(self, receipt: Receipt) -> Receipt:
        return attrs.evolve(receipt, fingerprints={**receipt.fingerprints, "lm_head.weight": "0" * 32})
