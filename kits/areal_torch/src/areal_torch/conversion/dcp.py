"""Checkpoints of torch.distributed.checkpoint, as torchtitan, Megatron and others write them.

Knows: its index and its files of tensors.
Does not know: models, or optimizers, whose tensors are left where they are.

The index is a pickle. It is read by a reader that knows the index's own classes and refuses every other name, and
tensors are read with `weights_only`: no code of a checkpoint is ever run.
"""

from __future__ import annotations

import io
import json
import math
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata

from areal_core.contract.errors import CheckpointError
from areal_torch.conversion.companions import companions_of
from areal_torch.conversion.format import Reader, TensorInfo, Writer
from areal_torch.conversion.grouping import split
from areal_torch.folder import storage_errors

INDEX = ".metadata"
_KNOWN = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    )
}
_KNOWN |= {("torch.distributed.checkpoint.filesystem", name) for name in ("_StorageInfo", "_StoragePrefix")}
_KNOWN |= {  # the plans of all ranks, which Megatron leaves in its index
    ("torch.distributed.checkpoint.planner", name)
    for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData")
}
_KNOWN |= {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}
_KNOWN |= {("torch", name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
_PATHS = {("pathlib", name) for name in ("PosixPath", "WindowsPath", "Path")}


@frozen
class DCPFolder:
    """The format `dcp`. `prefix` is what stands before every Hugging Face name, for example "model."."""

    prefix: str = ""
    name: str = "dcp"

    def detect(self, folder: Path) -> bool:
        """Tell by its index."""
        return (folder / INDEX).is_file()

    def open(self, folder: Path) -> Reader:
        """Read its index."""
        return Folder(folder, self.prefix)

    def create(self, folder: Path, tensors: Sequence[TensorInfo], companions: Path) -> Writer:
        """Write files of at most 4 GiB."""
        return _Files(folder, self.prefix, tuple(tensors))


class Folder:
    """Implements Reader. Tensors of other prefixes, and entries that are no tensors, are left out."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        """Read the index.

        Raises:
            CheckpointError: it is torn, names what is no part of an index, or has no tensor of the prefix.
        """
        self._folder = folder
        self._prefix = prefix
        self._index: Any = read_index(folder / INDEX)  # Any: torch's own, of which parts are untyped
        self._infos = [
            TensorInfo(
                name=key.removeprefix(prefix),
                shape=tuple(entry.size),
                dtype=str(entry.properties.dtype).removeprefix("torch."),
            )
            for key, entry in self._index.state_dict_metadata.items()
            if isinstance(entry, metadata.TensorStorageMetadata) and key.startswith(prefix)
        ]
        if not self._infos:
            keys = list(self._index.state_dict_metadata)
            raise CheckpointError(
                f"{folder} has no tensor whose name begins with {prefix!r}",
                why=f"it has {', '.join(keys[:3]) or 'nothing'}",
                fix="set --prefix to what precedes the model's own names",
            )

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the tensors of the prefix."""
        return self._infos

    def read(self, name: str) -> Tensor:
        """Put one tensor together from its pieces."""
        size = self._index.state_dict_metadata[self._prefix + name].size
        return self.part(name, [(0, length) for length in size])

    def part(self, name: str, bounds: Sequence[tuple[int, int]]) -> Tensor:
        """Put a box of a tensor together from the pieces it overlaps, one pair of bounds per dimension."""
        key = self._prefix + name
        entry = self._index.state_dict_metadata[key]
        box = torch.empty([stop - start for start, stop in bounds], dtype=entry.properties.dtype)
        filled = 0
        for number, chunk in enumerate(entry.chunks):
            common = [
                (max(start, at), min(stop, at + size))
                for (start, stop), at, size in zip(bounds, chunk.offsets, chunk.sizes, strict=True)
            ]
            if any(stop <= start for start, stop in common):
                continue
            piece = self._piece(key, tuple(chunk.offsets), number)
            if tuple(piece.shape) != tuple(chunk.sizes):
                raise self._torn(name, f"a piece is of shape {list(piece.shape)}, not {list(chunk.sizes)}")
            begins = [start for start, _ in bounds]
            box[_within(common, begins)] = piece[_within(common, chunk.offsets)]
            filled += math.prod(stop - start for start, stop in common)
        if filled != box.numel():
            raise self._torn(name, f"its pieces have {filled} of {box.numel()} elements")
        return box

    def companions(self) -> Sequence[Path]:
        """Return what lies beside the index."""
        return companions_of(self._folder)

    def _piece(self, key: str, offsets: tuple[int, ...], number: int) -> Tensor:
        found = self._index.storage_data.get(metadata.MetadataIndex(key, torch.Size(offsets), number))
        if found is None:
            raise self._torn(key, f"the index does not say where the piece at {list(offsets)} lies")
        if getattr(found, "transform_descriptors", None):
            raise CheckpointError(f"{key} in {self._folder} is compressed", why="this version reads plain files")
        file = (self._folder / found.relative_path).resolve()
        if self._folder.resolve() not in file.parents:
            raise self._torn(key, f"the index points outside of the folder, at {file}")
        try:
            with file.open("rb") as stream:
                stream.seek(found.offset)
                piece = torch.load(io.BytesIO(stream.read(found.length)), map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
            raise self._torn(key, f"{file.name}: {error}") from error
        if not isinstance(piece, Tensor):
            raise self._torn(key, f"{file.name} holds a {type(piece).__name__} there")
        return piece

    def _torn(self, name: str, why: str) -> CheckpointError:
        return CheckpointError(f"{name} in {self._folder} cannot be read", why=why, fix="copy the checkpoint again")


def _within(bounds: Sequence[tuple[int, int]], begins: Sequence[int]) -> tuple[slice, ...]:
    """Return bounds as seen from where a tensor begins."""
    return tuple(slice(start - at, stop - at) for (start, stop), at in zip(bounds, begins, strict=True))


class _IndexReader(pickle.Unpickler):
    """Builds what an index is made of and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PATHS:
            return pathlib.PurePosixPath  # where it was written once
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an index")
        return super().find_class(module, name)


def read_index(file: Path) -> Any:  # Any: torch's Metadata, of which parts are untyped
    """Read an index.

    Raises:
        CheckpointError: it is torn, or names what is no part of one.
    """
    try:
        with file.open("rb") as stream:
            index = _IndexReader(stream).load()
    except Exception as error:  # torn pickles raise anything
        raise CheckpointError(f"{file} cannot be read", why=str(error), fix="copy the checkpoint again") from error
    if not isinstance(index, metadata.Metadata):
        raise CheckpointError(f"{file} is no index", why=f"it holds a {type(index).__name__}")
    return index


@frozen
class _Files:
    """Implements Writer. Beside each file lies, until the end, where its tensors are in it."""

    folder: Path
    prefix: str
    infos: tuple[TensorInfo, ...]
    groups: list[list[str]] = field(init=False)

    @groups.default
    def _cut(self) -> list[list[str]]:
        return split(self.infos)

    def files(self) -> Sequence[Sequence[str]]:
        return self.groups

    def write(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        write_file(self.folder, number, {name: tensors[name] for name in self.groups[number]})

    def finish(self) -> None:
        pieces = {
            info.name: Place(
                key=self.prefix + info.name,
                offset=(0,) * len(info.shape),
                size=info.shape,
                whole=info.shape,
                dtype=info.dtype,
            )
            for info in self.infos
        }
        write_index(self.folder, len(self.groups), pieces)


@frozen(kw_only=True)
class Place:
    """Where a piece lies: it begins at `offset` in the tensor `key` of shape `whole`."""

    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: str


def write_file(folder: Path, number: int, pieces: Mapping[str, Tensor]) -> None:
    """Write named pieces into one file, and beside it, until the index is written, where in it they are.

    Raises:
        StorageError: they cannot be written.
    """
    file = folder / _file(number)
    with storage_errors(file):
        beside = file.with_suffix(".writing")
        where: dict[str, tuple[int, int]] = {}
        with beside.open("wb") as stream:
            for name, piece in pieces.items():
                start = stream.tell()
                stream.write(_encoded(piece))
                where[name] = start, stream.tell() - start
        _beside(folder, number).write_text(json.dumps(where))
        beside.rename(file)


def write_index(folder: Path, num_files: int, places: Mapping[str, Place]) -> None:
    """Write the index of all files, when they are there.

    Raises:
        StorageError: it cannot be written.
    """
    entries: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    for number in range(num_files):
        for name, (start, length) in json.loads(_beside(folder, number).read_text()).items():
            place = places[name]
            offset = torch.Size(place.offset)
            entry = entries.setdefault(
                place.key,
                metadata.TensorStorageMetadata(
                    properties=metadata.TensorProperties(dtype=getattr(torch, place.dtype)),
                    size=torch.Size(place.whole),
                    chunks=[],
                ),
            )
            key = metadata.MetadataIndex(place.key, offset, len(entry.chunks))
            entry.chunks.append(metadata.ChunkStorageMetadata(offsets=offset, sizes=torch.Size(place.size)))
            stored[key] = filesystem._StorageInfo(_file(number), start, length)
    index = metadata.Metadata(
        state_dict_metadata=entries,
        planner_data={key: (key,) for key in entries},
        storage_data=stored,
        storage_meta=metadata.StorageMeta(),
    )
    with storage_errors(folder / INDEX), (folder / INDEX).open("wb") as stream:
        pickle.dump(index, stream)
    for number in range(num_files):
        _beside(folder, number).unlink()


def _beside(folder: Path, number: int) -> Path:
    return folder / f"{_file(number)}.json"


def _file(number: int) -> str:
    return f"__{number}_0.distcp"


def _encoded(tensor: Tensor) -> bytes:
    stream = io.BytesIO()
    torch.save(tensor.detach().contiguous().clone(), stream)
    return stream.getvalue()
