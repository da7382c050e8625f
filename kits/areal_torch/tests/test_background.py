"""Folders written by threads: what is in them, when they appear, and what is left when one cannot be written."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import Factory, field, frozen

from areal_core.contract.errors import StorageError, TrainError
from areal_torch import background
from areal_torch.background import Background
from areal_torch.group import RankGroup, SingleRank
from areal_torch.pieces import Box, box_of
from areal_torch.state import Part, Piece, load_state


@frozen(eq=False)
class SharedValues:
    """Where the ranks of one role, each in a thread of this process, give their values."""

    size: int
    values: dict[int, Any] = Factory(dict)
    barrier: threading.Barrier = field(init=False)

    @barrier.default
    def _barrier(self) -> threading.Barrier:
        return threading.Barrier(self.size, timeout=10.0)


@frozen(eq=False)
class ThreadRank:
    """One of them."""

    rank: int
    shared: SharedValues
    data_ranks: Sequence[int] = ()

    @property
    def size(self) -> int:
        return self.shared.size

    def gather(self, value: Any) -> list[Any]:
        self.shared.values[self.rank] = value
        self.shared.barrier.wait()
        everyone = [self.shared.values[rank] for rank in range(self.size)]
        self.shared.barrier.wait()
        return everyone


@frozen(eq=False)
class Gated:
    """A part that is written when the gate is opened, or fails then."""

    name: str = "a.txt"
    gate: threading.Event = Factory(threading.Event)
    error: Exception | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.name,)

    def write(self, folder: Path) -> None:
        assert self.gate.wait(10.0), "nobody opened the gate"
        (folder / self.name).write_text("half")
        if self.error is not None:
            raise self.error

    def opened(self) -> Gated:
        self.gate.set()
        return self


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def everywhere(work: Callable[[RankGroup], Any]) -> list[Any]:
    """Run `work` on two ranks; return what each returned or raised."""
    shared = SharedValues(2)

    def one(rank: int) -> Any:
        try:
            return work(ThreadRank(rank, shared))
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_steps_go_on_while_it_is_written(tmp_path: Path) -> None:
    """`begin` returns before a byte is on disk; the folder has its name only after `finish`."""
    part, writer = Gated(), Background(SingleRank())

    writer.begin(tmp_path / "s", lambda: part)
    assert (writer.written, (tmp_path / "s").exists()) == (False, False)
    part.gate.set()
    writer.finish()

    assert writer.written
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert (tmp_path / "s" / "a.txt").read_text() == "half"


def test_what_is_written_is_what_was_there_at_the_beginning(tmp_path: Path) -> None:
    """Steps change tensors in place, also those that are views; the copy is neither."""
    whole = torch.arange(12.0).reshape(3, 4)
    pieces = {"a": Piece(tensor=whole[:, 1:3], box=box_of(whole[:, 1:3])), "b": Piece(tensor=whole, box=box_of(whole))}
    wanted = whole.clone()
    writer = Background(SingleRank())

    writer.begin(tmp_path / "s", Part.of(SingleRank(), pieces, {}, {"steps": 3}).copied)
    whole.zero_()
    writer.finish()
    held = {"a": _empty(3, 2), "b": _empty(3, 4)}
    facts, _ = load_state(tmp_path / "s", SingleRank(), held, {})

    assert facts == {"steps": 3}
    assert torch.equal(held["b"].tensor, wanted)
    assert torch.equal(held["a"].tensor, wanted[:, 1:3])


def test_a_part_that_one_rank_cannot_write_fails_on_all(tmp_path: Path) -> None:
    """Nothing is left, the folder before stays, and another can be begun."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "old.txt").write_text("old")

    def work(group: RankGroup) -> bool:
        writer = Background(group)
        error = no_room() if group.rank else None
        writer.begin(tmp_path / "s", lambda: Gated(f"{group.rank}.txt", error=error).opened())
        try:
            writer.finish()
        finally:
            writer.finish()
            writer.begin(tmp_path / "next", lambda: Gated(f"{group.rank}.txt").opened())
            writer.finish()
        return True

    for rank, found in enumerate(everywhere(work)):
        assert isinstance(found, StorageError), f"rank {rank} got {found!r}"
        assert "No space left" in str(found)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.txt", "1.txt", "next", "old.txt", "s"]


def test_a_file_that_is_not_where_rank_0_looks_is_an_error(tmp_path: Path) -> None:
    """Ranks on two machines, a folder on each: the state would be half of one."""

    def work(group: RankGroup) -> None:
        writer = Background(group)
        writer.begin(tmp_path / "s", lambda: Gated(f"{group.rank}.txt").opened())
        if group.rank == 1:
            assert writer._writing is not None
            writer._writing.wait()
            (tmp_path / "s.writing" / "1.txt").unlink()
        group.gather(None)
        writer.finish()

    for found in everywhere(work):
        assert isinstance(found, StorageError), repr(found)
        assert "rank 1 wrote 4 bytes of 1.txt" in str(found)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_has_no_room_for_the_copy_fails_on_all(tmp_path: Path) -> None:
    """No thread is started anywhere."""

    def work(group: RankGroup) -> None:
        def copy() -> Gated:
            if group.rank:
                raise StorageError("no memory for the copy", why="it is full")
            return Gated()

        writer = Background(group)
        try:
            writer.begin(tmp_path / "s", copy)
        finally:
            assert writer.written

    assert [type(found) for found in everywhere(work)] == [StorageError, StorageError]
    assert list(tmp_path.iterdir()) == []


def test_a_second_one_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """Both its error and its folder are the first one's own."""
    part, writer = Gated(), Background(SingleRank())
    writer.begin(tmp_path / "first", lambda: part)

    with pytest.raises(TrainError, match=r"first was begun and not finished"):
        writer.begin(tmp_path / "second", Gated)
    part.gate.set()
    writer.finish()

    assert [path.name for path in tmp_path.iterdir()] == ["first"]


@pytest.mark.parametrize("error", [None, no_room()])
def test_what_is_dropped_leaves_nothing(tmp_path: Path, error: OSError | None) -> None:
    """Written, half written or failed; twice."""
    writer = Background(SingleRank())
    writer.begin(tmp_path / "s", lambda: Gated(error=error).opened())

    writer.drop()
    writer.drop()
    writer.finish()

    assert list(tmp_path.iterdir()) == []


def test_a_part_that_cannot_be_written_counts_as_written(tmp_path: Path) -> None:
    """There is nothing left to write, and whoever waits for that is not kept waiting."""
    writer = Background(SingleRank())
    writer.begin(tmp_path / "s", lambda: Gated(error=no_room()).opened())
    assert writer._writing is not None
    writer._writing._thread.join(10.0)

    assert writer.written
    with pytest.raises(StorageError):
        writer.finish()


def test_a_folder_that_is_no_longer_there_does_not_keep_it_from_being_dropped(tmp_path: Path) -> None:
    """Neither one that is gone nor one in whose place a file is by now."""
    for taken in (False, True):
        writer, place = Background(SingleRank()), tmp_path / "place"
        writer.begin(place / "s", lambda: Gated().opened())
        assert writer._writing is not None
        writer._writing._thread.join(10.0)
        shutil.rmtree(place)
        if taken:
            place.write_text("a file")

        writer.drop()

        assert place.exists() == taken


def test_a_thread_that_is_slower_than_the_drop_cleans_up_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing does not wait for a slow disk."""
    monkeypatch.setattr(background, "_DROP_S", 0.0)
    part, writer = Gated(), Background(SingleRank())
    writer.begin(tmp_path / "s", lambda: part)
    assert writer._writing is not None
    thread = writer._writing._thread

    writer.drop()
    assert thread.is_alive()
    part.gate.set()
    thread.join(10.0)

    assert list(tmp_path.iterdir()) == []


def test_ranks_that_drop_one_after_another_leave_nothing(tmp_path: Path) -> None:
    """The last one removes the folder, whichever it is."""
    for last in (0, 1):
        writers: dict[int, Background] = {}

        def begin(group: RankGroup, writers: dict[int, Background] = writers) -> None:
            writers[group.rank] = Background(group)
            writers[group.rank].begin(tmp_path / "s", lambda: Gated(f"{group.rank}.txt").opened())

        assert everywhere(begin) == [None, None]
        writers[1 - last].drop()
        writers[last].drop()

        assert list(tmp_path.iterdir()) == []


def _empty(*shape: int) -> Piece:
    return Piece(tensor=torch.full(shape, -1.0), box=Box(offset=(0,) * len(shape), shape=shape))
