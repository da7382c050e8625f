"""The sending end every transport shares: checks, fingerprints and the order of calls.

Knows: what a complete version is.
Does not know: where a bucket goes; the transport's `BucketStore` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Receipt, WeightManifest
from areal_core.weights.coverage import Coverage


class BucketStore(Protocol):
    """Where one version's bytes go. Readers see nothing before `seal`."""

    def begin(self, manifest: WeightManifest) -> None:
        """Make room for everything announced."""

    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        """Store whole tensors; return the fingerprints of the bytes that were stored."""

    def seal(self) -> None:
        """Make the version readable, atomically."""

    def discard(self) -> None:
        """Leave nothing readable behind. Idempotent."""


class CheckedSink:
    """A `WeightSink` over a store. Any error discards what was written before it is raised."""

    def __init__(
        self,
        store: BucketStore,
        *,
        version: int,
        bucket_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.store = store
        self._version = version
        self._bucket_bytes = bucket_bytes
        self._clock = clock
        self._started = 0.0
        self.coverage: Coverage | None = None
        self.is_open = True

    @property
    def bucket_bytes(self) -> int:
        """Return the size at which the engine should cut buckets, in bytes."""
        return self._bucket_bytes

    def begin(self, manifest: WeightManifest) -> None:
        """Check the announcement and make room for it."""
        if self.coverage is not None or not self.is_open:
            raise WeightSyncError("begin was called twice on one sink", fix="ask the transport for a new sink")
        if manifest.version != self._version:
            self.abort()
            raise WeightSyncError(
                f"version {manifest.version} was announced", why=f"the offer is for version {self._version}"
            )
        self._started = self._clock()
        try:
            self.coverage = Coverage(manifest)
            self.store.begin(manifest)
        except BaseException:
            self.abort()
            raise

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Store one bucket and fingerprint the stored bytes."""
        coverage = self._announced()
        try:
            for name, tensor in bucket.items():
                coverage.check(name, tensor)
            for name, digits in self.store.write(bucket).items():
                coverage.record(name, digits)
        except BaseException:
            self.abort()
            raise

    def finish(self) -> Receipt:
        """Check completeness, then make the version readable."""
        coverage = self._announced()
        try:
            receipt = coverage.receipt(self._clock() - self._started)
            self.store.seal()
        except BaseException:
            self.abort()
            raise
        self.is_open = False
        return receipt

    def abort(self) -> None:
        """Drop whatever was written. Idempotent; without effect once finished."""
        if self.is_open:
            self.is_open = False
            self.store.discard()

    def _announced(self) -> Coverage:
        if self.coverage is None or not self.is_open:
            raise WeightSyncError(
                "the sink takes no tensors now",
                why="it was finished or aborted, or begin was not called",
                fix="call begin once, then write, then finish",
            )
        return self.coverage
