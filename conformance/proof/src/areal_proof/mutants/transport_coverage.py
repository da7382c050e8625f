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
from areal_core.contract.weights import Offer, TensorSpec, WeightManifest
from areal_local.transports.disk import DiskTransport
from areal_proof.mutants.rows import Original, before, breaking, row
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


breaks = breaking("transport/disk", _Lenient, part=("Sink", LenientSink))


@breaks("write", "transport.coverage.shape")
def ReshapesSilently(original: Original, self: LenientSink, bucket: Mapping[str, Tensor]) -> None:
    """A tensor with as many elements as announced is reshaped to fit."""
    fitting = {}
    for name, tensor in bucket.items():
        spec = self.specs.get(name)
        same = spec is not None and tensor.numel() == torch.Size(spec.shape).numel()
        fitting[name] = tensor.reshape(spec.shape) if same and spec else tensor
    original(fitting)


ROWS = breaks.rows(
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


@breaks("begin", "transport.coverage.manifest")
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
