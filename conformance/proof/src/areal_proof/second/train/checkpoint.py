"""Exact state on disk, and folders that exist only when they are complete.

Knows: one table of tensors, shared out over as many files as ranks; a json index; random states.
Does not know: what the tensors are. Nothing is pickled.

    STATE/index.json          {"facts": {...}, "progress": {...}, "files": {"weights/...": "part-0.safetensors"}}
    STATE/part-0.safetensors  every n-th tensor, whole
    STATE/random-0.safetensors  rank 0's generators
    STATE/proof-0.json        digests of what rank 0 wrote
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError, StorageError
from areal_proof.second.train.ranks import Ranks

Facts = Mapping[str, Any]  # Any: json of many types


def write_whole(path: Path, ranks: Ranks, write: Callable[[Path], None]) -> None:
    """Let every rank write into a folder beside `path`, then give it that name. Collective.

    Raises:
        StorageError: on every rank; what was at `path` before is still there, and nothing else.
    """
    building = path.with_name(f"{path.name}.building")
    try:
        ranks.agree(lambda: stored(path, lambda: make(building, ranks)))
        ranks.agree(lambda: stored(path, lambda: write(building)))
        ranks.agree(lambda: stored(path, lambda: name(building, path, ranks)))
    except BaseException:
        if ranks.rank == 0:
            shutil.rmtree(building, ignore_errors=True)
        raise


def make(building: Path, ranks: Ranks) -> None:
    """Make an empty folder, on rank 0."""
    if ranks.rank > 0:
        return
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)


def name(building: Path, path: Path, ranks: Ranks) -> None:
    """Give a folder that is complete its name, on rank 0."""
    if ranks.rank > 0:
        return
    before = path.with_name(f"{path.name}.before")
    for file in (*building.iterdir(), building):
        _flush(file)
    shutil.rmtree(before, ignore_errors=True)
    if path.exists():
        path.rename(before)
    building.rename(path)
    shutil.rmtree(before, ignore_errors=True)


def save(path: Path, ranks: Ranks, table: Mapping[str, Tensor], facts: Facts, progress: Facts) -> None:
    """Write the state. `facts` must be equal when it is loaded, `progress` is given back then. Collective."""
    write_whole(path, ranks, writer(ranks, table, facts, progress))


def writer(ranks: Ranks, table: Mapping[str, Tensor], facts: Facts, progress: Facts) -> Callable[[Path], None]:
    """Return what writes this rank's part of the state as it is now, whenever it is called."""
    file_of = {name: f"part-{number % ranks.size}.safetensors" for number, name in enumerate(table)}
    mine = f"part-{ranks.rank}.safetensors"

    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in table.items()
        if file_of[name] == mine
    }
    random = _random_states()

    def write(folder: Path) -> None:
        save_file(copies, folder / mine)
        save_file(random, folder / f"random-{ranks.rank}.safetensors")
        if ranks.rank == 0:
            index = {"facts": dict(facts), "progress": dict(progress), "ranks": ranks.size, "files": file_of}
            (folder / "index.json").write_text(json.dumps(index))
        own = [mine, f"random-{ranks.rank}.safetensors", *(["index.json"] if ranks.rank == 0 else [])]
        (folder / f"proof-{ranks.rank}.json").write_text(json.dumps({file: digest_of(folder / file) for file in own}))

    return write


def load(path: Path, ranks: Ranks, table: Mapping[str, Tensor], facts: Facts) -> dict[str, Any]:
    """Overwrite the table with a saved one, whatever number of ranks saved it, and return its progress. Collective.

    Random states come back where as many ranks load as saved.

    Raises:
        CheckpointError: on every rank, and nothing is overwritten.
    """
    index: dict[str, Any] = {}
    found: dict[str, Tensor] = {}
    random: dict[str, Tensor] = {}

    def read() -> None:
        try:
            index.update(json.loads((path / "index.json").read_text()))
            _prove(path, int(index["ranks"]))
            for file in sorted(set(index["files"].values())):
                found.update(load_file(path / file))
            if index["ranks"] == ranks.size:
                random.update(load_file(path / f"random-{ranks.rank}.safetensors"))
            _compare(path, index["facts"], facts, found, table)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise CheckpointError(
                f"no whole state in {path}", why=f"{type(error).__name__}: {error}", fix="load another"
            ) from error

    ranks.agree(read)
    with torch.no_grad():
        for name, tensor in table.items():
            tensor.copy_(found[name])
    _restore_random(random)
    progress: dict[str, Any] = index["progress"]
    return progress


def _compare(path: Path, saved: Facts, facts: Facts, found: Mapping[str, Tensor], table: Mapping[str, Tensor]) -> None:
    differing = sorted(name for name in set(saved) | set(facts) if saved.get(name) != facts.get(name))
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"the state in {path} is of another model or role",
            why=f"{name} was {saved.get(name)!r} and is {facts.get(name)!r}",
            fix="load it with the configuration it was saved with",
        )
    odd = [name for name, tensor in table.items() if name not in found or not _alike(found[name], tensor)]
    if odd:
        raise CheckpointError(
            f"the state in {path} lacks {odd[0]}", why="its files do not hold what its index names", fix="load another"
        )


def _prove(path: Path, num_ranks: int) -> None:
    """Raise ValueError where a file is not what its writer left."""
    for rank in range(num_ranks):
        for file, digest in json.loads((path / f"proof-{rank}.json").read_text()).items():
            if digest_of(path / file) != digest:
                raise ValueError(f"{file} holds other bytes than were saved")


def digest_of(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _restore_random(states: Mapping[str, Tensor]) -> None:
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def stored(path: Path, work: Callable[[], None]) -> None:
    """Do what writes to `path`; what the disk says against it is a StorageError."""
    try:
        work()
    except StorageError:
        raise
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{path} cannot be written", why=str(error), fix="make room, or choose another folder"
        ) from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
