"""Broken transports: other tensors than announced are taken.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt, TensorSpec, WeightManifest
from areal_local.transports.disk import DiskTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.weight_parts import PassingSink


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


@mutant("transport/disk", killers=("transport.coverage.unannounced",), incident="UniRL#166", row="one-destination")
class DropsStrangers(_Lenient):
    """A tensor nobody announced is left out without a word."""

    class Sink(LenientSink):
        """Leaves it out."""

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            """Pass on what was announced."""
            super().write({name: tensor for name, tensor in bucket.items() if name in self.specs})


@mutant("transport/disk", killers=("transport.coverage.shape",))
class ReshapesSilently(_Lenient):
    """A tensor with as many elements as announced is reshaped to fit."""

    class Sink(LenientSink):
        """Reshapes it."""

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            """Pass on what fits."""
            fitting = {}
            for name, tensor in bucket.items():
                spec = self.specs.get(name)
                same = spec is not None and tensor.numel() == torch.Size(spec.shape).numel()
                fitting[name] = tensor.reshape(spec.shape) if same and spec else tensor
            super().write(fitting)


@mutant("transport/disk", killers=("transport.coverage.dtype",))
class CastsSilently(_Lenient):
    """A tensor of another dtype is cast to the one announced."""

    class Sink(LenientSink):
        """Casts it."""

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            """Pass on what fits."""
            super().write(
                {n: t.to(getattr(torch, self.specs[n].dtype)) if n in self.specs else t for n, t in bucket.items()}
            )


@mutant("transport/disk", killers=("transport.coverage.twice",), row="one-destination")
class FirstWriteWins(_Lenient):
    """A tensor that comes again is ignored."""

    class Sink(LenientSink):
        """Ignores it."""

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            """Pass on what is new."""
            super().write({name: tensor for name, tensor in bucket.items() if name not in self.written})


@mutant("transport/disk", killers=("transport.coverage.missing", "transport.machine"), row="one-destination")
class FillsWithZeros(_Lenient):
    """A tensor that never came is sent as zeros."""

    class Sink(LenientSink):
        """Fills up."""

        def finish(self) -> Receipt:
            """Write what is missing."""
            lost = {
                n: torch.zeros(s.shape, dtype=getattr(torch, s.dtype))
                for n, s in self.specs.items()
                if n not in self.written
            }
            self.inner.write(lost)
            return super().finish()


@mutant("transport/disk", killers=("transport.coverage.manifest",))
class TidiesManifests(_Lenient):
    """A manifest with a name twice, or tied to nothing, is mended in silence."""

    class Sink(LenientSink):
        """Mends it."""

        def begin(self, manifest: WeightManifest) -> None:
            """Keep the first of each name, and the ties that make sense."""
            specs = tuple({spec.name: spec for spec in reversed(manifest.tensors)}.values())[::-1]
            names = {spec.name for spec in specs}
            tied = {n: c for n, c in manifest.tied.items() if c in names and n not in names}
            super().begin(attrs.evolve(manifest, tensors=specs, tied=tied))


@mutant("transport/disk", killers=("transport.version.announced",))
class AnnouncesWhatWasOffered(_Lenient):
    """A sender that announces another version is believed to mean the one offered."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def begin(self, manifest: WeightManifest) -> None:
                super().begin(attrs.evolve(manifest, version=offer.version))

        return Sink(DiskTransport.sink(self, offer))


@mutant("transport/disk", killers=("transport.order.begin",))
class BeginsAgain(_Lenient):
    """A second `begin` starts over, on a sink that has begun."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        make = super().sink

        class Sink(PassingSink):
            def begin(self, manifest: WeightManifest) -> None:
                try:
                    super().begin(manifest)
                except WeightSyncError:
                    self.inner = DiskTransport.sink(outer, offer)
                    super().begin(manifest)

        outer = self
        return Sink(make(offer).inner)

    Sink = LenientSink
