"""Weights through files: a safetensors file for each part of a bucket, and an index that makes them readable.

Parts are written side by side: what a file costs is mostly one core's copy into the page cache.

Knows: the folder of each version.
Does not know: engines. Works wherever every participant sees the folder under one path.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.errors import CoverageError, StorageError, WeightSyncError
from areal_core.contract.weights import Offer, TensorSpec, WeightManifest
from areal_core.weights.tensors import num_bytes, spec_of
from areal_local.transports.config import DiskConfig
from areal_local.transports.sink import CheckedSink
from areal_torch.owned_folder import OwnedFolder, remove_if_orphaned
from areal_torch.proved_copy import prove

_INDEX = "index.json"
_MAX_PARTS = 2
"""More would contend for the page cache, and trainer and replicas have other work."""
_MIN_PART_BYTES = 4 << 20
_SHARED = "where workers are on several hosts, set weight_sync.options.root to a folder that all of them share"


class DiskTransport:
    """The transport `disk`. The offer holds all a worker needs, so workers may use any config."""

    def __init__(self, config: DiskConfig | None = None) -> None:
        self.config = config or DiskConfig()
        self.folder: OwnedFolder | None = None
        self._watched: set[str] = set()

    def open(self, version: int) -> Offer:
        """Make the folder of one version."""
        try:
            if self.folder is None:
                self.folder = OwnedFolder(Path(self.config.root or tempfile.gettempdir()).resolve(), "areal-weights")
            folder = Path(tempfile.mkdtemp(prefix=f"v{version}-", dir=self.folder.path))
        except OSError as error:
            raise _storage_error(Path(self.config.root or tempfile.gettempdir()), error) from error
        location: dict[str, str | int] = {
            "folder": str(folder),
            "bucket_bytes": self.config.bucket_bytes,
            "fsync": int(self.config.fsync),
        }
        return Offer(transport="disk", version=version, location=location)

    def sink(self, offer: Offer) -> CheckedSink:
        """Make the sending end."""
        folder = self._attend(offer)
        store = _FileStore(folder, fsync=bool(offer.location["fsync"]))
        return CheckedSink(store, version=offer.version, bucket_bytes=int(offer.location["bucket_bytes"]))

    def source(self, offer: Offer) -> DiskSource:
        """Make a receiving end of a finished version."""
        return DiskSource(self._attend(offer), offer.version)

    def release(self, offer: Offer) -> None:
        """Delete one version's files. Idempotent."""
        shutil.rmtree(str(offer.location["folder"]), ignore_errors=True)

    def close(self) -> None:
        """Delete everything this controller opened. Idempotent."""
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    def _attend(self, offer: Offer) -> Path:
        folder = Path(str(offer.location["folder"]))
        owned = str(folder.parent)
        if owned not in self._watched:
            # A worker outlives a killed controller for a moment: then it is the one to tidy up.
            self._watched.add(owned)
            weakref.finalize(self, remove_if_orphaned, folder.parent)
        return folder


class _FileStore:
    def __init__(self, folder: Path, *, fsync: bool) -> None:
        self._folder = folder
        self._fsync = fsync
        self._manifest: WeightManifest | None = None
        self._files: dict[str, list[str]] = {}

    def begin(self, manifest: WeightManifest) -> None:
        self._manifest = manifest
        needed = sum(num_bytes(spec) for spec in manifest.tensors)
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise WeightSyncError(
                f"the folder {self._folder} is not there",
                why=f"the offer was released, or host {socket.gethostname()} has another disk than the controller",
                fix=_SHARED,
            ) from error
        if free < needed:
            raise StorageError(
                f"{needed / 1e9:.2f} GB of weights do not fit {self._folder}",
                why=f"{free / 1e9:.2f} GB are free there",
                fix="free space, or give the transport another root",
            )

    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        stored = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in bucket.items()})
        parts = {f"{len(self._files) + n:06d}.safetensors": part for n, part in enumerate(_parts(stored))}
        with ThreadPoolExecutor(_MAX_PARTS, thread_name_prefix="areal-weights") as threads:
            digits = list(threads.map(self._write_part, *zip(*parts.items(), strict=True)))
        self._files |= {file: list(part) for file, part in parts.items()}
        return dict(zip(stored, itertools.chain(*digits), strict=True))

    def _write_part(self, file: str, part: dict[str, Tensor]) -> list[str]:
        """Write one file; return the fingerprints of its tensors."""
        try:
            save_file(part, self._folder / file)
            if self._fsync:
                _sync(self._folder / file)
        except (OSError, SafetensorError) as error:
            raise _storage_error(self._folder, error) from error
        return prove(list(part.values()))

    def seal(self) -> None:
        manifest = self._manifest
        assert manifest is not None
        index = {
            "version": manifest.version,
            "tensors": [[spec.name, list(spec.shape), spec.dtype] for spec in manifest.tensors],
            "tied": dict(manifest.tied),
            "files": self._files,
        }
        unnamed = self._folder / f"{_INDEX}.part"
        try:
            unnamed.write_text(json.dumps(index))
            if self._fsync:
                _sync(unnamed)
            unnamed.rename(self._folder / _INDEX)
            if self._fsync:
                _sync(self._folder)
        except OSError as error:
            raise _storage_error(self._folder, error) from error

    def discard(self) -> None:
        # The folder stays, empty: it belongs to the offer, and the controller releases that.
        for file in self._folder.glob("*"):
            file.unlink(missing_ok=True)


class DiskSource:
    """A finished version on disk; tensors are views of memory-mapped files."""

    def __init__(self, folder: Path, version: int) -> None:
        self._folder = folder
        try:
            index = json.loads((folder / _INDEX).read_text())
            self._manifest = WeightManifest(
                version=index["version"],
                tensors=tuple(TensorSpec(name=n, shape=tuple(s), dtype=d) for n, s, d in index["tensors"]),
                tied=index["tied"],
            )
            self._files: dict[str, list[str]] = index["files"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightSyncError(
                f"version {version} cannot be read from {folder}",
                why=f"it was never finished, or was released, or this host has another disk ({error})",
                fix=_SHARED,
            ) from error
        if self._manifest.version != version:
            raise WeightSyncError(
                f"{folder} holds version {self._manifest.version}", why=f"version {version} was offered"
            )

    @property
    def manifest(self) -> WeightManifest:
        """Return what the sender announced."""
        return self._manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield every tensor once, file by file."""
        announced = {spec.name: spec for spec in self._manifest.tensors}
        for file, names in self._files.items():
            bucket = self.read(file, names)
            for name, tensor in bucket.items():
                if announced.pop(name, None) != spec_of(name, tensor):
                    raise CoverageError(f"tensor {name!r} in {file} is not the one announced, or came twice")
            yield bucket
        if announced:
            raise CoverageError(f"tensor {min(announced)!r} is in no file of {self._folder}")

    def close(self) -> None:
        """Nothing to do: each file is closed once mapped, and unmapped with its last tensor."""

    def read(self, file: str, names: list[str]) -> dict[str, Tensor]:
        try:
            with safe_open(self._folder / Path(file).name, framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise WeightSyncError(f"{file} of {self._folder} cannot be read", why=str(error)) from error


def _parts(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Cut a bucket, in order, into parts of about as many bytes; into one if it is small."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    count = max(1, min(_MAX_PARTS, total // _MIN_PART_BYTES))
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    start = 0
    for name, tensor in tensors.items():
        parts[min(start * count // max(1, total), count - 1)][name] = tensor
        start += tensor.nbytes
    return [part for part in parts if part]


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that overlap others of the bucket: safetensors refuses to write shared memory."""
    end = 0
    for name in sorted(tensors, key=lambda name: (tensors[name].data_ptr(), tensors[name].nbytes)):
        tensor = tensors[name]
        if tensor.nbytes and tensor.data_ptr() < end:
            tensors[name] = tensor.clone()
        else:
            end = max(end, tensor.data_ptr() + tensor.nbytes)
    return tensors


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(folder: Path, error: Exception) -> StorageError:
    return StorageError(
        f"weights could not be written under {folder}",
        why=str(error),
        fix="free space or permission there, or give the transport another root",
    )
