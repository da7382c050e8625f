"""Folders appear whole or not at all."""

from __future__ import annotations

import errno
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_core.contract.errors import CheckpointError, StorageError
from areal_torch import folder
from areal_torch.exchange import exchange
from areal_torch.folder import write_folder
from areal_torch.group import SingleRank
from areal_torch.pieces import Box, box_of
from areal_torch.state import Piece, load_state, save_state


def listing(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_a_folder_replaces_the_one_before(tmp_path: Path) -> None:
    """Nothing of the old one stays, and nothing else lies beside it."""
    write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "old.txt"))
    write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "new.txt"))

    assert listing(tmp_path) == ["model/new.txt"]


def test_a_folder_that_replaces_another_is_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both change names in one step; where a file system has none, one after the other, and the end is the same."""
    missing: list[Path] = []
    rename = Path.rename

    def noting(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        missing.extend([] if (tmp_path / "model").exists() else [self])
        return renamed

    monkeypatch.setattr(Path, "rename", noting)
    for cannot in (False, True):
        if cannot:
            monkeypatch.setattr(folder, "exchange", lambda _one, _other: False)
        for name in ("old.txt", "new.txt"):
            write_folder(tmp_path / "model", SingleRank(), lambda partial, name=name: _put(partial / name))  # type: ignore[misc]
        assert listing(tmp_path) == ["model/new.txt"]
        assert missing == ([tmp_path / "model"] * 2 if cannot else [])


def test_a_folder_keeps_its_name_when_the_one_that_replaces_it_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two names cannot change places the old folder is renamed first; an error then gives it back its name."""
    write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "old.txt"))
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "model.partial":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(folder, "exchange", lambda _one, _other: False)
    monkeypatch.setattr(Path, "rename", failing)

    with pytest.raises(StorageError, match="Input/output"):
        write_folder(tmp_path / "model", SingleRank(), lambda partial: _put(partial / "new.txt"))
    assert listing(tmp_path) == ["model/old.txt"]


def test_names_of_what_is_not_there_are_not_exchanged(tmp_path: Path) -> None:
    """An error is told, and nothing was changed."""
    _put(tmp_path / "here")

    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "here", tmp_path / "not")
    assert listing(tmp_path) == ["here"]


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
    return {name: Piece(tensor=t, box=box_of(t)) for name, t in tensors.items()}


def test_state_comes_back(tmp_path: Path) -> None:
    """Tensors in place, facts and own tensors returned."""
    save_state(tmp_path / "s", SingleRank(), pieces(3.0), {"rng": torch.arange(4)}, {"head": "value", "steps": 5})
    held = pieces(0.0)

    facts, own = load_state(tmp_path / "s", SingleRank(), held, {"head": "value"})

    assert facts == {"head": "value", "steps": 5}
    assert own["rng"].tolist() == [0, 1, 2, 3]
    assert torch.equal(held["a"].tensor, torch.full((4, 2), 3.0))
    assert float(held["scalar"].tensor) == 3.0


@frozen
class Turn:
    """One rank of several that write or read one after another, without waiting for the rest."""

    rank: int
    size: int
    data_ranks: Sequence[int] = ()

    def gather(self, value: Any) -> list[Any]:
        return [value]


def cut(whole: torch.Tensor, rows: int, columns: int) -> list[Piece]:
    """Cut a matrix as torch.chunk does, along both dimensions; some parts are empty."""
    high, wide = -(-whole.shape[0] // rows), -(-whole.shape[1] // columns)
    found = []
    for row, column in itertools.product(range(rows), range(columns)):
        top, left = min(row * high, whole.shape[0]), min(column * wide, whole.shape[1])
        part = whole[top : top + high, left : left + wide].clone()
        found.append(Piece(tensor=part, box=Box(offset=(top, left), shape=tuple(whole.shape))))
    return found


def write_ranks(folder: Path, parts: Sequence[Piece]) -> None:
    """Write a state of several ranks, as each of them would."""
    partial = folder.with_name(folder.name + ".partial")
    for rank, part in enumerate(parts):
        if rank:
            partial.mkdir()
        save_state(folder, Turn(rank=rank, size=len(parts)), {"a": part}, {}, {})
        if rank:
            next(partial.iterdir()).rename(folder / f"rank-{rank:05d}.safetensors")
            partial.rmdir()


GRID = st.tuples(st.integers(1, 4), st.integers(1, 3))


@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 7)), wrote=GRID, reads=GRID)
@settings(max_examples=40, deadline=None)
def test_any_cut_reads_what_any_cut_wrote(
    shape: tuple[int, int], wrote: tuple[int, int], reads: tuple[int, int]
) -> None:
    """Parts are found wherever they lie, along both dimensions, also by ranks that hold none."""
    whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "s"
        write_ranks(folder, cut(whole, *wrote))
        for wanted in cut(whole, *reads):
            held = Piece(tensor=torch.full_like(wanted.tensor, -1.0), box=wanted.box)
            load_state(folder, SingleRank(), {"a": held}, {})
            assert torch.equal(held.tensor, wanted.tensor)


def test_a_part_that_several_hold_is_written_by_the_one_that_answers_for_it(tmp_path: Path) -> None:
    """The other's bytes are not in its file, and it reads those of the first."""
    first, second = torch.ones(2, 2), torch.full((2, 2), 2.0)
    box = Box(offset=(0, 0), shape=(2, 2))
    copy = Piece(tensor=second, box=evolve(box, mine=False))
    write_ranks(tmp_path / "s", [Piece(tensor=first, box=box), copy])

    load_state(tmp_path / "s", SingleRank(), {"a": copy}, {})

    assert torch.equal(second, first)


def test_states_that_do_not_fit_are_refused_before_anything_changes(tmp_path: Path) -> None:
    """Missing, torn, of another model, of other shapes."""
    save_state(tmp_path / "s", SingleRank(), pieces(3.0), {}, {"head": "value"})
    other = pieces(0.0) | {"b": Piece(tensor=torch.zeros(2), box=box_of(torch.zeros(2)))}
    longer = {"a": Piece(tensor=torch.zeros(5, 2), box=box_of(torch.zeros(5, 2)))}

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
