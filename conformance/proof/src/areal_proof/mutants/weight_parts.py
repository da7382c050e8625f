"""Ends of a weight transfer that pass everything on until one thing is overridden, and transports with such ends.

Knows: the two ends' methods, and where a transport makes them.
Does not know: any defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from areal_core.contract.weights import Offer, Receipt, TensorSpec, WeightManifest
from areal_proof.mutants.rows import Breaking, breaking, subclass


def folder_of(offer: Offer) -> Path:
    """Return where a version lies that the transport `disk` offers."""
    return Path(str(offer.location["folder"]))


class PassingSource:
    """A source around another one. Any: the transport's own classes."""

    def __init__(self, inner: Any, transport: Any = None, offer: Any = None) -> None:
        self.inner, self.transport, self.offer = inner, transport, offer

    @property
    def manifest(self) -> WeightManifest:
        """Pass it on, through `announce`."""
        return self.announce(self.inner.manifest)

    def announce(self, manifest: WeightManifest) -> WeightManifest:
        """Return what the receiver is told in place of a manifest."""
        return manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Pass every bucket on, each tensor through `alter`."""
        for bucket in self.inner.buckets():
            yield {name: self.alter(name, tensor) for name, tensor in bucket.items()}

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        """Return what arrives in place of a tensor."""
        return tensor

    def close(self) -> None:
        """Pass it on."""
        self.inner.close()


class PassingSink:
    """A sink around another one, which knows what was announced and written. Any: the transport's own classes."""

    def __init__(
        self, inner: Any, transport: Any = None, offer: Any = None, make: Callable[[], Any] | None = None
    ) -> None:
        self.inner, self.transport, self.offer, self._make = inner, transport, offer, make
        self.manifest: WeightManifest | None = None
        self.written: set[str] = set()

    @property
    def bucket_bytes(self) -> int:
        """Pass it on."""
        return int(self.inner.bucket_bytes)

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Return what was announced, by name."""
        return {spec.name: spec for spec in self.manifest.tensors} if self.manifest is not None else {}

    @property
    def complete(self) -> bool:
        """Whether everything announced was written."""
        return self.manifest is not None and len(self.written) == len(self.manifest.tensors)

    def anew(self, manifest: WeightManifest | None) -> None:
        """Take another sink of the same offer, and begin on that."""
        assert self._make is not None
        self.inner = self._make()
        self.inner.begin(manifest)

    def begin(self, manifest: WeightManifest) -> None:
        """Pass it on."""
        self.manifest = manifest
        self.inner.begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Pass it on."""
        self.inner.write(bucket)
        self.written.update(bucket)

    def finish(self) -> Receipt:
        """Pass it on."""
        receipt: Receipt = self.inner.finish()
        return receipt

    def abort(self) -> None:
        """Pass it on."""
        self.inner.abort()


def with_ends(transport: type) -> type:
    """Return a transport with ends of the classes `Sink` and `Source`, which pass everything on."""
    return subclass(f"{transport.__name__}WithEnds", transport, {
        "Sink": PassingSink,
        "Source": PassingSource,
        "sink": lambda original, self, offer: self.Sink(original(), self, offer, original),
        "source": lambda original, self, offer: self.Source(original(), self, offer),
    })  # fmt: skip


def breaking_ends(of: str, transport: type) -> tuple[Breaking, Breaking, Breaking]:
    """Break a transport with ends, the sinks of one, or the sources of one."""
    whole = with_ends(transport)
    sinks, sources = (
        breaking(of, whole, part=("Sink", PassingSink)),
        breaking(of, whole, part=("Source", PassingSource)),
    )
    return breaking(of, whole), sinks, sources
