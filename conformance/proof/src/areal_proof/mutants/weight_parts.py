"""Ends of a weight transfer that pass everything on until one thing is overridden.

Knows: the two ends' methods.
Does not know: any defect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from areal_core.contract.weights import Receipt, WeightManifest


class PassingSource:
    """A source around another one. Any: the transport's own class."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def manifest(self) -> WeightManifest:
        """Pass it on."""
        manifest: WeightManifest = self.inner.manifest
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
    """A sink around another one. Any: the transport's own class."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def bucket_bytes(self) -> int:
        """Pass it on."""
        return int(self.inner.bucket_bytes)

    def begin(self, manifest: WeightManifest) -> None:
        """Pass it on."""
        self.inner.begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Pass it on."""
        self.inner.write(bucket)

    def finish(self) -> Receipt:
        """Pass it on."""
        receipt: Receipt = self.inner.finish()
        return receipt

    def abort(self) -> None:
        """Pass it on."""
        self.inner.abort()
