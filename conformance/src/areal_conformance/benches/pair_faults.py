"""Transports that fail where a check says, around a real one.

Knows: the two ends of a transfer.
Does not know: which transport is inside, or who uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import Factory, define
from torch import Tensor

from areal_core.contract.weights import Offer, WeightManifest, WeightTransport


@define
class Trouble:
    """What is to happen: each function may change what it is given, or raise. `fired` counts."""

    on_write: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    on_read: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    on_manifest: Callable[[WeightManifest], WeightManifest] | None = None
    readers: list[int] = Factory(lambda: [0])
    """Number of sources made."""
    only_reader: int = -1
    """Number of the source that suffers, -1 for every one."""
    fired: int = 0

    def wrap(self, transport: WeightTransport) -> Any:
        """Return the transport with this trouble in it. Any: it satisfies WeightTransport."""
        return _Troubled(transport, self)

    def heal(self) -> None:
        """Let nothing happen any more."""
        self.on_write = self.on_read = self.on_manifest = None


class _Around:
    """An end of a transfer, or the transport: what is not changed passes through. Any: their own classes."""

    def __init__(self, inner: Any, trouble: Trouble, number: int = 0) -> None:
        self._inner, self._trouble, self._number = inner, trouble, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Troubled(_Around):
    def sink(self, offer: Offer) -> Any:
        return _Sink(self._inner.sink(offer), self._trouble)

    def source(self, offer: Offer) -> Any:
        number = self._trouble.readers[0]
        self._trouble.readers[0] += 1
        return _Source(self._inner.source(offer), self._trouble, number)


class _Sink(_Around):
    @property
    def bucket_bytes(self) -> int:
        return min(int(self._inner.bucket_bytes), 4096)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        if self._trouble.on_write is not None:
            self._trouble.fired += 1
            bucket = self._trouble.on_write(bucket)
        self._inner.write(bucket)


class _Source(_Around):
    @property
    def manifest(self) -> WeightManifest:
        manifest: WeightManifest = self._inner.manifest
        if self._trouble.on_manifest is not None and self._concerned:
            self._trouble.fired += 1
            return self._trouble.on_manifest(manifest)
        return manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        for bucket in self._inner.buckets():
            if self._trouble.on_read is not None and self._concerned:
                self._trouble.fired += 1
                yield self._trouble.on_read({name: tensor.clone() for name, tensor in bucket.items()})
            else:
                yield bucket

    @property
    def _concerned(self) -> bool:
        return self._trouble.only_reader in (-1, self._number)
