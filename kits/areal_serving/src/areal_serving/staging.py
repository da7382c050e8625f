"""New weights held ready beside the ones served: a model folder in memory that the engine loads at commit.

The folder looks like any Hugging Face folder, so every engine's own loader takes it, sharded or fused as
the engine needs; its one safetensors file lies in anonymous memory where the system has it.

Knows: the safetensors format, coverage, fingerprints.
Does not know: where the bytes come from, or when the engine may load them.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from attrs import field, frozen
from torch import Tensor

from areal_core.contract.errors import StorageError, VersionRegressed, WeightSyncError
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest, WeightSource
from areal_core.weights.coverage import Coverage
from areal_core.weights.tensors import combined, num_bytes, torch_dtype
from areal_serving.model import ServedModel
from areal_torch.proved_copy import copy_proved
from areal_torch.shared_memory import Segment, grow, has_anonymous

WEIGHTS_FILE = "model.safetensors"
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_ALIGNMENT = 64


@frozen(kw_only=True)
class StagedWeights:
    """One version, whole and proved. `folder` is what an engine loads, `told` how it is told so; `close` frees it."""

    version: int
    folder: Path
    told: Path
    receipt: Receipt
    _weights: Path = field(alias="weights", repr=False)
    _segment: Segment = field(alias="segment", repr=False)

    def close(self) -> None:
        """Free the memory. Whoever still has it mapped keeps reading it. Once."""
        mine = self._weights.is_symlink() and self._weights.readlink() == Path(self._segment.path)
        self._segment.close()
        if mine:  # else the same version with the same bytes came again
            shutil.rmtree(self.folder, ignore_errors=True)


class Staging:
    """Receives versions one at a time for one model.

    Args:
        alike: whether other hosts stage the same versions, each in a root of its own: engines that have theirs as
            working folder are told a name that follows from the bytes.
    """

    weights_file: ClassVar[str] = WEIGHTS_FILE

    def __init__(
        self, model: ServedModel, root: Path, *, alike: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._root = root
        self._alike = alike
        self._clock = clock

    def receive(self, source: WeightSource, version: int, *, served: int, stop: threading.Event) -> StagedWeights:
        """Take every tensor of `version`; fingerprints are of the bytes the engine will load.

        Setting `stop`, from any thread, ends it at the next tensor.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError, ResourceError: nothing is kept.
        """
        started = self._clock()
        try:
            if version <= served:
                raise VersionRegressed(
                    f"weights of version {version} were offered", why=f"version {served} is serving already"
                )
            return self._take(source, version, started, stop)
        finally:
            source.close()

    def check(self, manifest: WeightManifest) -> None:
        """Check that a sender's tensors and the model's match one to one.

        Raises:
            CoverageError: they do not.
        """
        self._model.check(manifest)

    def fill(self, folder: Path) -> None:
        """Put what an engine needs beside the staged weights into their folder: the served model's other files."""
        for item in self._model.path.iterdir():
            if item.is_file() and not item.name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
                (folder / item.name).symlink_to(item.resolve())

    def _take(self, source: WeightSource, version: int, started: float, stop: threading.Event) -> StagedWeights:
        manifest = source.manifest
        if manifest.version != version:
            raise WeightSyncError(
                f"version {version} was announced", why=f"the source holds version {manifest.version}"
            )
        coverage = Coverage(manifest)
        self.check(manifest)
        sent = {spec.name: spec for spec in manifest.tensors}
        followers = {name: carrier for name, carrier in manifest.tied.items() if name in self._model.shapes}
        copies = [TensorSpec(name=n, shape=sent[c].shape, dtype=sent[c].dtype) for n, c in followers.items()]
        file = _WeightsFile([*manifest.tensors, *copies])
        try:
            with file.views() as views:
                for bucket in source.buckets():
                    for name, tensor in bucket.items():
                        if stop.is_set():
                            raise WeightSyncError(f"receiving version {version} was aborted")
                        coverage.check(name, tensor)
                    held = copy_proved([(views[name], tensor) for name, tensor in bucket.items()])
                    for name, digits in zip(bucket, held, strict=True):
                        coverage.record(name, digits)
                receipt = coverage.receipt(self._clock() - started)
                for name, carrier in followers.items():
                    views[name].copy_(views[carrier])
            folder = self._folder(version, file.segment.path, receipt)
        except BaseException:
            file.segment.close()
            raise
        return StagedWeights(
            version=version,
            folder=folder,
            told=Path(folder.name) if self._alike else folder,
            receipt=receipt,
            weights=folder / self.weights_file,
            segment=file.segment,
        )

    def _folder(self, version: int, weights: str, receipt: Receipt) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"v{version}-", dir=self._root))
        self.fill(folder)
        (folder / self.weights_file).symlink_to(weights)
        if not self._alike:
            return folder
        named = self._root / f"v{version}-{combined(receipt.fingerprints)[:16]}"
        shutil.rmtree(named, ignore_errors=True)  # the same bytes may be held already
        return folder.rename(named)  # whole at once: the engine's workers may wait for it


class _WeightsFile:
    """One safetensors file of given tensors, to be filled through views."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = specs
        ends = 0
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        for spec in specs:
            size = num_bytes(spec)
            header[spec.name] = {
                "dtype": _dtype(spec),
                "shape": list(spec.shape),
                "data_offsets": [ends, ends + size],
            }
            ends += size
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        self._head = struct.pack("<Q", len(text)) + text
        self._size = len(self._head) + ends
        self.segment = _memory()
        try:
            grow(self.segment.descriptor, self._size, self.segment.path)
        except BaseException:
            self.segment.close()
            raise

    @contextlib.contextmanager
    def views(self) -> Iterator[Mapping[str, Tensor]]:
        """Map the file; its tensors, to be written to, are there within the `with` block."""
        mapped = mmap.mmap(self.segment.descriptor, self._size)
        mapped[: len(self._head)] = self._head
        tensors: dict[str, Tensor] = {}
        start = len(self._head)
        for spec in self._specs:
            tensors[spec.name] = _view(mapped, start, spec)
            start += num_bytes(spec)
        try:
            yield tensors
        finally:
            tensors.clear()
            del mapped  # unmapped here, also while an error's traceback holds on to this frame


def _view(mapped: mmap.mmap, start: int, spec: TensorSpec) -> Tensor:
    size, dtype = num_bytes(spec), torch_dtype(spec)
    if size == 0:  # torch makes no view of nothing
        return torch.empty(spec.shape, dtype=dtype)
    # As bytes first: an offset need not be a multiple of the item size (a float8 tensor before a wider one).
    return torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=start).view(dtype).view(spec.shape)


def _dtype(spec: TensorSpec) -> str:
    if spec.dtype not in _DTYPES:
        raise WeightSyncError(
            f"tensor {spec.name!r} of {spec.dtype} cannot be served",
            why=f"weights travel to servers as {', '.join(_DTYPES)}",
        )
    return _DTYPES[spec.dtype]


def _memory() -> Segment:
    try:
        if has_anonymous():
            return Segment.anonymous("areal-staged")
        descriptor, name = tempfile.mkstemp(prefix="areal-staged-")
        os.close(descriptor)
        Path(name).unlink()
        return Segment.file(Path(name))
    except OSError as error:
        raise StorageError("memory for staged weights could not be allocated", why=str(error)) from error
