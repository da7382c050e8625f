"""Folders appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.training.folder import write_folder
from areal_core.training.group import SingleRank
from areal_core.training.state import Piece, load_state, save_state
from areal_core.weights.fingerprint import fingerprint


def listing(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_a_folder_replaces_the_one_before(tmp_path: Path) -> None:
    """Nothing of the old one stays, and nothing else lies beside it."""
    write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "old.txt"))
    write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "new.txt"))

    assert listing(tmp_path) == ["model/new.txt"]


def test_a_full_disk_leaves_the_folder_before_and_nothing_else(tmp_path: Path) -> None:
    """ENOSPC half way is a StorageError with the path; the former folder is untouched."""
    write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "old.txt"))

    def run_full(partial: Path) -> None:
        _put(partial / "half.txt")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="No space left") as caught:
        write_folder(tmp_path / "model", SingleRank(), run_full)
    assert listing(tmp_path) == ["model/old.txt"]
    assert "model" in caught.value.what


def test_any_other_error_also_leaves_nothing(tmp_path: Path) -> None:
    """An interrupt is not swallowed, and cleans up."""

    def interrupt(partial: Path) -> None:
        _put(partial / "half.txt")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "model", SingleRank(), interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    """A file where the folder should go."""
    _put(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot write"):
        write_folder(tmp_path / "file" / "model", SingleRank(), lambda partial: None)


def pieces(fill: float) -> dict[str, Piece]:
    tensors = {"a": torch.full((4, 2), fill), "scalar": torch.tensor(fill), "none": torch.zeros(0, 2)}
    return {name: Piece(tensor=t, rows=t.shape[0] if t.ndim else 1) for name, t in tensors.items()}


def test_state_comes_back(tmp_path: Path) -> None:
    """Tensors in place, facts and own tensors returned."""
    save_state(tmp_path / "s", SingleRank(), pieces(3.0), {"rng": torch.arange(4)}, {"head": "value", "steps": 5})
    held = pieces(0.0)

    facts, own = load_state(tmp_path / "s", SingleRank(), held, {"head": "value"})

    assert facts == {"head": "value", "steps": 5}
    assert own["rng"].tolist() == [0, 1, 2, 3]
    assert torch.equal(held["a"].tensor, torch.full((4, 2), 3.0))
    assert float(held["scalar"].tensor) == 3.0


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_ranks_reads_what_three_wrote(count: int, tmp_path: Path) -> None:
    """Rows are found wherever they lie, also by ranks that get none."""
    whole = torch.arange(14.0).reshape(7, 2)
    folder = tmp_path / "s"
    folder.mkdir()
    for rank, part in enumerate((whole[0:3], whole[3:6], whole[6:7])):
        offsets = json.dumps({"a": [3 * rank, 7]})
        header = {"offsets": offsets, "fingerprints": json.dumps({"a": fingerprint(part)})}
        save_file({"a": part.contiguous()}, folder / f"rank-{rank:05d}.safetensors", header)
    index = {"format": 2, "ranks": 3, "facts": {}}
    digest = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (folder / "state.json").write_text(json.dumps({**index, "digest": digest}))
    chunk = -(-7 // count)

    read = []
    for rank in range(count):
        start = min(rank * chunk, 7)
        held = torch.zeros(min(chunk, 7 - start), 2)
        load_state(folder, SingleRank(), {"a": Piece(tensor=held, offset=start, rows=7)}, {})
        read.append(held)

    assert torch.equal(torch.cat(read), whole)


def test_states_that_do_not_fit_are_refused_before_anything_changes(tmp_path: Path) -> None:
    """Missing, torn, of another model, of other shapes."""
    save_state(tmp_path / "s", SingleRank(), pieces(3.0), {}, {"head": "value"})
    other = pieces(0.0) | {"b": Piece(tensor=torch.zeros(2), rows=2)}
    longer = {"a": Piece(tensor=torch.zeros(5, 2), rows=5)}

    with pytest.raises(CheckpointError, match="no complete training state"):
        load_state(tmp_path / "nowhere", SingleRank(), pieces(0.0), {})
    with pytest.raises(CheckpointError, match="head was 'value'"):
        load_state(tmp_path / "s", SingleRank(), pieces(0.0), {"head": "causal_lm"})
    with pytest.raises(CheckpointError, match="does not hold b"):
        load_state(tmp_path / "s", SingleRank(), other, {})
    with pytest.raises(CheckpointError, match="does not hold a"):
        load_state(tmp_path / "s", SingleRank(), longer, {})
    assert not other["a"].tensor.any()

    file = tmp_path / "s" / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="missing or torn"):
        load_state(tmp_path / "s", SingleRank(), pieces(0.0), {})


def _put(file: Path) -> None:
    file.write_text("x")
