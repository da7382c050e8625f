"""Exact training state on disk: one safetensors file per rank and one json, readable by any number of ranks.

Knows: tensors cut into boxes along any dimensions, where each piece lies.
Does not know: what the tensors are. Nothing is pickled.

    state/state.json              {"format": 3, "ranks": 2, "facts": {...}, "digest": ...}
    state/rank-00000.safetensors  the pieces rank 0 answers for; its header says where each begins, and its fingerprint

A piece that is read whole is compared with its fingerprint; one of which a rank needs a part only is not,
for then every rank would read every file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError
from areal_core.weights.tensors import fingerprint
from areal_torch.folder import write_folder
from areal_torch.group import RankGroup, agree
from areal_torch.pieces import Box

FORMAT = 3
_INDEX = "state.json"


@frozen(kw_only=True, eq=False)
class Piece:
    """What this rank holds of one tensor, and where it lies in the whole."""

    tensor: Tensor
    box: Box


@frozen(kw_only=True, eq=False)
class Part:
    """What one rank writes of a state. `index` is there on rank 0; Any: json."""

    rank: int
    tensors: Mapping[str, Tensor]
    boxes: Mapping[str, tuple[Sequence[int], Sequence[int]]]
    index: Mapping[str, Any] | None

    @classmethod
    def of(
        cls, group: RankGroup, pieces: Mapping[str, Piece], own: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> Part:
        """Return this rank's part: the pieces it answers for, and tensors of its `own`. The tensors are not copied."""
        answered = {name: piece for name, piece in pieces.items() if piece.box.mine}
        return cls(
            rank=group.rank,
            tensors={name: piece.tensor.detach() for name, piece in answered.items()}
            | {f"own/{name}": tensor for name, tensor in own.items()},
            boxes={name: (piece.box.offset, piece.box.shape) for name, piece in answered.items()},
            index=None if group.rank else {"format": FORMAT, "ranks": group.size, "facts": dict(facts)},
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of the files it writes."""
        return (_file(self.rank), *(() if self.index is None else (_INDEX,)))

    def copied(self) -> Part:
        """Return the same part in host memory of its own, which no later step changes."""
        copies = {name: torch.empty(t.shape, dtype=t.dtype).copy_(t) for name, t in self.tensors.items()}
        return evolve(self, tensors=copies)

    def write(self, folder: Path) -> None:
        """Write the files."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.tensors.items()}
        fingerprints = {name: fingerprint(tensor) for name, tensor in tensors.items()}
        header = {"boxes": json.dumps(self.boxes), "fingerprints": json.dumps(fingerprints)}
        save_file(tensors, folder / _file(self.rank), metadata=header)
        if self.index is not None:
            text = json.dumps({**self.index, "digest": _digest(self.index)}, indent=1)
            (folder / _INDEX).write_text(text)


def save_state(
    path: Path, group: RankGroup, pieces: Mapping[str, Piece], own: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write this rank's pieces, and tensors of its `own` (random states). Collective.

    Args:
        facts: json, the same on every rank; Any: the engine's own.

    Raises:
        StorageError: on every rank; a state saved before at `path` is kept.
    """
    write_folder(path, group, Part.of(group, pieces, own, facts).write)


def load_state(
    path: Path, group: RankGroup, pieces: Mapping[str, Piece], facts: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fill the pieces' tensors in place, whatever number of ranks wrote them. Collective.

    Args:
        facts: those that must be equal to the saved ones.

    Returns:
        All saved facts, and this rank's own tensors; none if the number of ranks differs.

    Raises:
        CheckpointError: on every rank: missing, incomplete, or of another model;
            nothing is overwritten then.
    """
    index: dict[str, Any] = {}
    own: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}

    def read() -> None:
        index.update(_read_index(path, facts))
        files = [_Saved.open(path / _file(rank)) for rank in range(index["ranks"])]
        found.update({name: _assemble(path, name, piece, files) for name, piece in pieces.items()})
        if index["ranks"] == group.size:
            mine = files[group.rank]
            own.update({name.removeprefix("own/"): mine.whole(name) for name in mine.names if name.startswith("own/")})

    agree(group, read)
    with torch.no_grad():  # only now: a rank that cannot read its part leaves no rank with another state
        for name, piece in pieces.items():
            piece.tensor.copy_(found[name])
    return index["facts"], own


@frozen(kw_only=True, eq=False)
class _Saved:
    """One rank's file, open. Any: safetensors is not typed."""

    path: Path
    handle: Any
    boxes: Mapping[str, tuple[list[int], list[int]]]
    fingerprints: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> _Saved:
        """Open a file and read its header."""
        try:
            handle = safe_open(path, framework="pt")
            header: Any = handle.metadata()  # type: ignore[no-untyped-call]
            boxes, fingerprints = json.loads(header["boxes"]), json.loads(header["fingerprints"])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _torn(path, str(error)) from error
        return cls(path=path, handle=handle, boxes=boxes, fingerprints=fingerprints)

    @property
    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self.handle.keys())

    def whole(self, name: str) -> Tensor:
        """Return one tensor as it was saved."""
        tensor: Tensor = self.handle.get_tensor(name)
        if fingerprint(tensor) != self.fingerprints.get(name):
            raise _torn(self.path, f"{name} is not what was saved: its fingerprint differs")
        return tensor

    def shape(self, name: str) -> list[int]:
        """Return the shape of a piece."""
        return list(self.handle.get_slice(name).get_shape())

    def part(self, name: str, bounds: Sequence[tuple[int, int]]) -> Tensor:
        """Return the part of a piece within bounds of its own, one pair per dimension."""
        if list(bounds) == [(0, size) for size in self.shape(name)]:
            return self.whole(name)
        part: Tensor = self.handle.get_slice(name)[tuple(slice(start, stop) for start, stop in bounds)]
        return part


def _torn(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is missing or torn", why=why, fix="resume from another state")


def _digest(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _read_index(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((path / _INDEX).read_text())
        saved, number = index["facts"], index["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"no complete training state in {path}", why=str(error), fix="resume from another"
        ) from error
    if number != FORMAT:
        raise CheckpointError(f"state in {path} has format {number}", why=f"this version reads format {FORMAT}")
    if index.pop("digest", None) != _digest(index):
        raise _torn(path / _INDEX, "its digest differs")
    for name, value in facts.items():
        if saved.get(name) != value:
            raise CheckpointError(
                f"state in {path} is of another model or role",
                why=f"{name} was {saved.get(name)!r}, now it is {value!r}",
                fix="resume with the configuration the run began with",
            )
    return index


def _assemble(path: Path, name: str, piece: Piece, files: list[_Saved]) -> Tensor:
    """Read one box of a tensor from every file that holds a part of it."""
    wanted = piece.tensor
    found = torch.empty(wanted.shape, dtype=wanted.dtype)
    missing = wanted.numel()
    shapes: set[tuple[int, ...]] = set()
    try:
        for file in files:
            if name not in file.boxes or not missing:
                continue
            begin, whole = file.boxes[name]
            shapes.add(tuple(whole))
            if tuple(whole) != piece.box.shape:
                break
            common = _common(piece.box.offset, wanted.shape, begin, file.shape(name))
            if common is None:
                continue
            part = file.part(name, [(start - at, stop - at) for (start, stop), at in zip(common, begin, strict=True)])
            if part.dtype != wanted.dtype:
                break
            inside = tuple(
                slice(start - at, stop - at) for (start, stop), at in zip(common, piece.box.offset, strict=True)
            )
            found[inside] = part
            missing -= part.numel()
    except (SafetensorError, ValueError, TypeError) as error:
        raise _torn(path, str(error)) from error
    if missing:
        raise CheckpointError(
            f"state in {path} does not hold {name} as {wanted.dtype} of shape {list(piece.box.shape)}",
            why=f"{missing} of {wanted.numel()} elements are not there; shapes found: {sorted(shapes) or 'none'}",
            fix="resume with the model the run began with",
        )
    return found


def _common(
    offset: Sequence[int], shape: Sequence[int], other_offset: Sequence[int], other_shape: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Return where two boxes of one tensor overlap, None if they do not."""
    bounds = [
        (max(at, other_at), min(at + size, other_at + other_size))
        for at, size, other_at, other_size in zip(offset, shape, other_offset, other_shape, strict=True)
    ]
    return bounds if math.prod(stop - start if stop > start else 0 for start, stop in bounds) else None


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"
