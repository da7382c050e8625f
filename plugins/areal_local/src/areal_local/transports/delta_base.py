"""Both ends of a transfer whose tensors travel as differences to a version both ends kept.

    sizes of what follows, int64 for each tensor of a bucket | for each: nothing, a difference, or all its bytes

Knows: the version kept, by the fingerprint of all its bytes, and the buckets of the announced tensors.
Does not know: how a difference is written (`delta`), how bytes travel, or who keeps which version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import TensorSpec
from areal_core.weights.tensors import combined, num_bytes, raw_bytes, spec_of, torch_dtype
from areal_local.transports import delta
from areal_torch.proved_copy import prove


class KeptVersion:
    """The tensors of one version, on the CPU, and its mark: the fingerprint of all of them. "" where there is none.

    They are out while a transfer changes them, so that one that breaks leaves none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[str, dict[str, Tensor]] | None = None

    def mark(self) -> str:
        """Return the mark of what is kept."""
        with self._lock:
            return self._kept[0] if self._kept else ""

    def take(self, mark: str) -> dict[str, Tensor]:
        """Hand over the version with this mark; else drop what is kept, for the next one will be another."""
        with self._lock:
            kept, self._kept = self._kept, None
        return kept[1] if kept and kept[0] == mark else {}

    def keep(self, mark: str, tensors: dict[str, Tensor]) -> None:
        """Keep a version that is whole and proved."""
        with self._lock:
            self._kept = mark, tensors


class Outgoing:
    """The sender's end: brings what it kept to the new version, and tells what receivers need to do the same.

    Args:
        kept: tensors every receiver has as well; those it lacks, or has with another shape, go whole.
        cut: the announced tensors, bucket by bucket.
    """

    def __init__(self, kept: dict[str, Tensor], cut: Sequence[Sequence[TensorSpec]]) -> None:
        self._kept = kept
        self._sizes = [len(specs) for specs in reversed(cut)]
        self._pending: list[Tensor] = []
        self._fingerprints: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self.num_bytes = 0

    @property
    def mark(self) -> str:
        """Return the mark of what was written."""
        return combined(self._fingerprints)

    def write(self, bucket: Mapping[str, Tensor]) -> list[Tensor]:
        """Take whole tensors in the announced order; return what is to be streamed by now, uint8 each."""
        flats: list[Tensor] = []
        for name, tensor in bucket.items():
            self._pending.append(self._change(name, tensor.detach()))
            if len(self._pending) == self._sizes[-1]:
                flats += [_bytes_of([part.numel() for part in self._pending]), *self._pending]
                self._pending = []
                self._sizes.pop()
        self.num_bytes += sum(flat.numel() for flat in flats)
        return flats

    def prove(self, names: Sequence[str]) -> dict[str, str]:
        """Return the fingerprints of tensors as they are after the change, which is what receivers must have."""
        found = dict(zip(names, prove([self.tensors[name] for name in names]), strict=True))
        self._fingerprints |= found
        return found

    def _change(self, name: str, tensor: Tensor) -> Tensor:
        new, kept = raw_bytes(tensor), self._kept.pop(name, None)
        if kept is not None and spec_of(name, kept) == spec_of(name, tensor):
            difference = delta.encode(raw_bytes(kept), new, tensor.itemsize)
            if difference.numel() < new.numel():
                delta.apply(raw_bytes(kept), difference, tensor.itemsize)
                self.tensors[name] = kept
                return difference
        whole = new.clone()
        self.tensors[name] = _shaped(whole, spec_of(name, tensor))
        return whole


class Incoming:
    """A receiver's end: `fill` receives the bytes of the tensors it is given, uint8 each."""

    def __init__(self, kept: dict[str, Tensor], fill: Callable[[Sequence[Tensor]], None]) -> None:
        self._kept = kept
        self._fill = fill
        self._in_step = True
        self._fingerprints: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}

    @property
    def mark(self) -> str:
        """Return the mark of what has arrived."""
        return combined(self._fingerprints)

    def receive(self, specs: Sequence[TensorSpec]) -> dict[str, Tensor]:
        """Receive one bucket; return its tensors whole.

        Raises:
            WeightSyncError: what came is no change of what is kept.
        """
        if not self._in_step:
            # A bucket is asked for before the one before is looked at; gloo ends the process over other sizes.
            raise WeightSyncError("a bucket of changes cannot arrive", why="the one before did not")
        self._in_step = False
        told = torch.empty(8 * len(specs), dtype=torch.uint8)
        self._fill([told])
        sizes = told.view(torch.int64).tolist()
        for spec, size in zip(specs, sizes, strict=True):
            if not 0 <= size <= num_bytes(spec):
                raise WeightSyncError(f"tensor {spec.name!r} came as {size} bytes", why=f"it has {num_bytes(spec)}")
        parts = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        self._fill(parts)
        bucket = {spec.name: self._changed(spec, part) for spec, part in zip(specs, parts, strict=True)}
        self._fingerprints.update(zip(bucket, prove(list(bucket.values())), strict=True))
        self.tensors |= bucket
        self._in_step = True
        return bucket

    def _changed(self, spec: TensorSpec, part: Tensor) -> Tensor:
        kept = self._kept.pop(spec.name, None)
        if part.numel() == num_bytes(spec):
            return _shaped(part, spec)
        if kept is None or spec_of(spec.name, kept) != spec:
            raise WeightSyncError(
                f"a difference came to tensor {spec.name!r}", why="nothing is kept that it could be of"
            )
        delta.apply(raw_bytes(kept), part, torch_dtype(spec).itemsize)
        return kept


def _shaped(flat: Tensor, spec: TensorSpec) -> Tensor:
    return flat.view(torch_dtype(spec)).reshape(spec.shape)


def _bytes_of(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)
