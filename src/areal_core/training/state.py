"""Exact training state on disk: one safetensors file per rank and one json, readable by any number of ranks.

Knows: tensors cut along their first dimension, where each piece lies.
Does not know: what the tensors are. Nothing is pickled.

    state/state.json              {"format": 1, "ranks": 2, "facts": {...}}
    state/rank-00000.safetensors  the pieces rank 0 held; its header says where each begins
"""

from __future__ import annotations

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

FORMAT = 1


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
        save_file(tensors, partial / _file(group.rank), metadata={"offsets": json.dumps(offsets)})
        if group.rank == 0:
            index = {"format": FORMAT, "ranks": group.size, "facts": dict(facts)}
            (partial / "state.json").write_text(json.dumps(index, indent=1))

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

    def read() -> None:
        index.update(_read_index(path, facts))
        files = [_open(path / _file(rank)) for rank in range(index["ranks"])]
        offsets = [json.loads(file.metadata()["offsets"]) for file in files]
        found = {name: _assemble(path, name, piece, files, offsets) for name, piece in pieces.items()}
        with torch.no_grad():
            for name, piece in pieces.items():
                piece.tensor.copy_(found[name])
        if index["ranks"] == group.size:
            mine = files[group.rank]
            own.update({n.removeprefix("own/"): mine.get_tensor(n) for n in mine.keys() if n.startswith("own/")})  # noqa: SIM118

    agree(group, read)
    return index["facts"], own


def _read_index(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((path / "state.json").read_text())
        saved, number = index["facts"], index["format"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"no complete training state in {path}", why=str(error), fix="resume from another"
        ) from error
    if number != FORMAT:
        raise CheckpointError(f"state in {path} has format {number}", why=f"this version reads format {FORMAT}")
    for name, value in facts.items():
        if saved.get(name) != value:
            raise CheckpointError(
                f"state in {path} is of another model or role",
                why=f"{name} was {saved.get(name)!r}, now it is {value!r}",
                fix="resume with the configuration the run began with",
            )
    return index


def _open(file: Path) -> Any:  # Any: safetensors is not typed
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is missing or torn", why=str(error), fix="resume from another state") from error


def _assemble(path: Path, name: str, piece: Piece, files: list[Any], offsets: list[dict[str, list[int]]]) -> Tensor:
    """Read rows [offset, offset + len) of one tensor from every file that holds some of them."""
    wanted = piece.tensor
    start, stop = piece.offset, piece.offset + (wanted.shape[0] if wanted.ndim else 1)
    parts: list[Tensor] = []
    position = start
    for file, table in zip(files, offsets, strict=True):
        if name not in table or position >= stop:
            continue
        begin, rows = table[name]
        if rows != piece.rows:
            break
        if wanted.ndim == 0:
            parts, position = [file.get_tensor(name)], stop
            continue
        view = file.get_slice(name)
        end = begin + view.get_shape()[0]
        if begin <= position < end:
            parts.append(view[position - begin : min(stop, end) - begin])
            position = min(stop, end)
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
