"""A weight transport that is a dictionary: for tests of engines, in one process.

Knows: the two ends of a transfer, and their checks.
Does not know: files, memory segments, or other processes.

Example:
    sink = MemorySink(bucket_bytes=1 << 20)
    receipt = engine.send_weights(sink, version=3)
    sink.tensors["model.norm.weight"]
    inference.receive_weights(MemorySource(sink), version=3)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from areal_core.contract.errors import CoverageError, WeightSyncError
from areal_core.contract.weights import Receipt, WeightManifest
from areal_core.weights.tensors import fingerprint


class MemorySink:
    """A WeightSink that keeps copies. `spoil(name, tensor)` may change what arrives, to test that it is noticed."""

    def __init__(self, bucket_bytes: int = 1 << 20, spoil: Callable[[str, Tensor], Tensor] | None = None) -> None:
        """Ask for buckets of about `bucket_bytes`."""
        self.tensors: dict[str, Tensor] = {}
        self.buckets: list[list[str]] = []
        self.manifest: WeightManifest | None = None
        self.aborted = False
        self.finished = False
        self._bucket_bytes = bucket_bytes
        self._spoil = spoil
        self._began = 0.0

    @property
    def bucket_bytes(self) -> int:
        """Return the size asked for."""
        return self._bucket_bytes

    def begin(self, manifest: WeightManifest) -> None:
        """Remember what is to come."""
        self._began = time.perf_counter()
        self.manifest = manifest

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Copy a bucket."""
        announced = {spec.name: spec for spec in self.manifest.tensors} if self.manifest else {}
        for name, tensor in bucket.items():
            spec = announced.get(name)
            if spec is None or spec.shape != tuple(tensor.shape) or f"torch.{spec.dtype}" != str(tensor.dtype):
                raise CoverageError(
                    f"tensor {name!r} {tensor.dtype} {tuple(tensor.shape)} was not announced", why=str(spec)
                )
            copy = tensor.detach().cpu().clone()
            self.tensors[name] = self._spoil(name, copy) if self._spoil else copy
        self.buckets.append(list(bucket))

    def finish(self) -> Receipt:
        """Check that everything came and tell what it was."""
        assert self.manifest is not None
        missing = {spec.name for spec in self.manifest.tensors} - set(self.tensors)
        if missing:
            raise CoverageError(
                f"{len(missing)} announced tensors were never written", why=", ".join(sorted(missing)[:4])
            )
        self.finished = True
        return Receipt(
            version=self.manifest.version,
            num_bytes=sum(tensor.nbytes for tensor in self.tensors.values()),
            seconds=time.perf_counter() - self._began,
            fingerprints={name: fingerprint(tensor) for name, tensor in self.tensors.items()},
        )

    def abort(self) -> None:
        """Drop everything."""
        self.tensors, self.aborted, self.finished = {}, True, False


class MemorySource:
    """The WeightSource of a finished MemorySink."""

    def __init__(self, sink: MemorySink) -> None:
        """Read what `sink` holds.

        Raises:
            WeightSyncError: it was never finished.
        """
        if not sink.finished or sink.manifest is None:
            raise WeightSyncError("the weights offered were never finished", why="the sender failed or is not done")
        self._sink = sink
        self._manifest = sink.manifest

    @property
    def manifest(self) -> WeightManifest:
        """Return what the sender announced."""
        return self._manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield the sender's buckets."""
        for names in self._sink.buckets:
            yield {name: self._sink.tensors[name] for name in names}

    def close(self) -> None:
        """Do nothing."""
