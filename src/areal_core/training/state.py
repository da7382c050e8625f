"""Exact training state on disk: one safetensors file per rank and one json, readable by any number of ranks.

Knows: tensors cut along their first dimension, where each piece lies.
Does not know: what the tensors are. Nothing is pickled.

    state/state.json              {"format": 2, "ranks": 2, "facts": {...}, "digest": ...}
    state/rank-00000.safetensors  the pieces rank 0 held; its header says where each begins, and its fingerprint

A piece that is read whole is compared with its fingerprint; one of which a rank needs some rows only is not,
for then every rank would read every file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError
from areal_core.training.folder import write_folder
from areal_core.training.group import Group, agree
from areal_core.weights.fingerprint import fingerprint

FORMAT = 2


@frozen(kw_only=True, eq=False)
class Piece:
    """Rows [offset, offset + len(tensor)) of a tensor of `rows` rows; 0-dimensional tensors have offset 0."""

    tensor: Tensor
    offset: int = 0
    rows: int = 0


def save_state(
    path: Path, group: Group, pieces: Mapping[str, Piece], own: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write this rank's pieces, and tensors of its `own` (random states). Collective.

    Args:
        facts: json, the same on every rank; Any: the engine's own.

    Raises:
        StorageError: on every rank; a state saved before at `path` is kept.
    """
    offsets = {name: [piece.offset, piece.rows] for name, piece in pieces.items()}

    def write(partial: Path) -> None:
        tensors = {name: piece.tensor.detach().cpu().contiguous() for name, piece in pieces.items()}
        tensors |= {f"own/{name}": tensor for name, tensor in own.items()}
        fingerprints = {name: fingerprint(tensor) for name, tensor in tensors.items()}
        header = {"offsets": json.dumps(offsets), "fingerprints": json.dumps(fingerprints)}
        save_file(tensors, partial / _file(group.rank), metadata=header)
        if group.rank == 0:
            index = {"format": FORMAT, "ranks": group.size, "facts": dict(facts)}
            (partial / "state.json").write_text(json.dumps({**index, "digest": _digest(index)}, indent=1))

    write_folder(path, group, write)


def load_state(
    path: Path, group: Group, pieces: Mapping[str, Piece], facts: Mapping[str, Any]
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
    offsets: Mapping[str, list[int]]
    fingerprints: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> _Saved:
        """Open a file and read its header."""
        try:
            handle = safe_open(path, framework="pt")
            header: Any = handle.metadata()  # type: ignore[no-untyped-call]
            offsets, fingerprints = json.loads(header["offsets"]), json.loads(header["fingerprints"])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _torn(path, str(error)) from error
        return cls(path=path, handle=handle, offsets=offsets, fingerprints=fingerprints)

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

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return some rows of a tensor."""
        view = self.handle.get_slice(name)
        if (start, stop) == (0, view.get_shape()[0]):
            return self.whole(name)
        rows: Tensor = view[start:stop]
        return rows


def _torn(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is missing or torn", why=why, fix="resume from another state")


def _digest(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _read_index(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((path / "state.json").read_text())
        saved, number = index["facts"], index["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"no complete training state in {path}", why=str(error), fix="resume from another"
        ) from error
    if number != FORMAT:
        raise CheckpointError(f"state in {path} has format {number}", why=f"this version reads format {FORMAT}")
    if index.pop("digest", None) != _digest(index):
        raise _torn(path / "state.json", "its digest differs")
    for name, value in facts.items():
        if saved.get(name) != value:
            raise CheckpointError(
                f"state in {path} is of another model or role",
                why=f"{name} was {saved.get(name)!r}, now it is {value!r}",
                fix="resume with the configuration the run began with",
            )
    return index


def _assemble(path: Path, name: str, piece: Piece, files: list[_Saved]) -> Tensor:
    """Read rows [offset, offset + len) of one tensor from every file that holds some of them."""
    wanted = piece.tensor
    start, stop = piece.offset, piece.offset + (wanted.shape[0] if wanted.ndim else 1)
    parts: list[Tensor] = []
    position = start
    try:
        for file in files:
            if name not in file.offsets or position >= stop:
                continue
            begin, rows = file.offsets[name]
            if rows != piece.rows:
                break
            if wanted.ndim == 0:
                parts, position = [file.whole(name)], stop
                continue
            end = begin + file.handle.get_slice(name).get_shape()[0]
            if begin <= position < end:
                parts.append(file.rows(name, position - begin, min(stop, end) - begin))
                position = min(stop, end)
    except (SafetensorError, ValueError, TypeError) as error:
        raise _torn(path, str(error)) from error
    found = torch.cat(parts) if len(parts) > 1 else (parts[0] if parts else wanted[:0].cpu())
    if position < stop or found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise CheckpointError(
            f"state in {path} does not hold {name} as {wanted.dtype} with {piece.rows} rows",
            why=f"found {found.dtype} {list(found.shape)} for rows {start} to {stop}",
            fix="resume with the model the run began with",
        )
    return found


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"
