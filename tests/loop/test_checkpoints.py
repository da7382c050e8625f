"""When checkpoints are due, and how long a disk that refuses one is asked again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from areal_core.config.schema import CheckpointConfig
from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.loop.checkpoint import PATIENCE_S, RETRY_S, Checkpoints, Progress, begin_checkpoint, restore
from areal_core.loop.learner import Learner
from areal_core.loop.run_folder import RunFolder
from areal_core.testing.clock import StepClock


class Trainer:
    """A learner and its actor on a disk that is full until `room_at`; a state takes `seconds`."""

    role, critic = "actor", None

    def __init__(self, clock: StepClock, *, room_at: float = 0.0, seconds: float = 0.0) -> None:
        self._clock, self.room_at, self._seconds = clock, room_at, seconds

    @property
    def actor(self) -> Trainer:
        return self

    async def save_state(self, path: Path) -> None:
        if self._clock.now() < self.room_at:
            raise StorageError(f"{path} is not written", why="No space left on device")
        if self._seconds:
            await self._clock.sleep(self._seconds)

    async def save_weights(self, _path: Path) -> None:
        """Nothing to write."""


class Bench:
    """Checkpoints in a folder, and what they told."""

    def __init__(self, root: Path, *, room_at: float = 0.0, seconds: float = 0.0, **config: Any) -> None:
        self.clock, self.folder = StepClock(), RunFolder(root)
        self.trainer = Trainer(self.clock, room_at=room_at, seconds=seconds)
        self.complete: list[int] = []
        self.refused: list[int] = []
        self.checkpoints = Checkpoints(
            self.folder,
            cast(Learner, self.trainer),
            CheckpointConfig(**config),
            lambda version, _: self.complete.append(version),
            lambda version, _: self.refused.append(version),
            self.clock,
        )

    async def save(self, version: int) -> asyncio.Future[None]:
        """Save a last state, asked again and again while the disk refuses; return how that ended."""
        saving = asyncio.ensure_future(self.checkpoints.save(_progress(version)))
        await self.clock.settle()
        while not saving.done():
            await self.clock.advance(RETRY_S)
        return saving

    async def step(self, version: int, seconds: float) -> None:
        """Spend a step's time, and save what is due after it."""
        await self.clock.advance(seconds)
        if self.checkpoints.due(version):
            saving = asyncio.ensure_future(self.checkpoints.begin(_progress(version)))
            await self.clock.settle()
            while (deadline := self.clock.next_deadline) is not None:
                await self.clock.advance(deadline - self.clock.now())
            await saving


def _progress(version: int) -> Progress:
    return Progress(version=version, tasks={}, totals={})


def test_without_a_number_of_steps_checkpoints_go_by_time(tmp_path: Path) -> None:
    """Ten minutes apart, so that a crash costs no more than those."""

    async def body() -> list[int]:
        bench = Bench(tmp_path)
        for version in range(1, 11):
            await bench.step(version, 200.0)
        return bench.complete

    assert asyncio.run(body()) == [3, 6, 9]


def test_checkpoints_by_time_take_a_twentieth_of_it_at_most(tmp_path: Path) -> None:
    """A large model whose state takes two minutes is saved every forty."""

    async def body() -> list[int]:
        bench = Bench(tmp_path, seconds=120.0)
        for version in range(1, 14):
            await bench.step(version, 600.0)
        return bench.complete

    assert asyncio.run(body()) == [1, 5, 9, 13]


def test_both_intervals_zero_save_none_on_the_way(tmp_path: Path) -> None:
    """Whoever wants only the last state can have it."""
    bench = Bench(tmp_path, every_s=0.0)

    asyncio.run(bench.clock.advance(1e9))

    assert not bench.checkpoints.due(1)


def test_the_last_checkpoint_waits_for_room_on_the_disk(tmp_path: Path) -> None:
    """A moment of full disk costs a moment."""

    async def body() -> Bench:
        bench = Bench(tmp_path, room_at=5.0)
        (await bench.save(7)).result()
        return bench

    bench = asyncio.run(body())

    assert bench.complete == [7]
    assert bench.refused == [7]
    assert bench.folder.latest() == tmp_path / "checkpoints" / "step-000007"


def test_a_disk_that_was_full_once_is_waited_for_as_long_when_it_is_full_again(tmp_path: Path) -> None:
    """Hours later: the refusal before was over when a checkpoint was written."""

    async def body() -> Bench:
        bench = Bench(tmp_path, room_at=5.0)
        (await bench.save(7)).result()
        await bench.clock.advance(10 * PATIENCE_S)
        bench.trainer.room_at = bench.clock.now() + PATIENCE_S / 2
        (await bench.save(8)).result()
        return bench

    bench = asyncio.run(body())

    assert (bench.complete, bench.refused) == ([7, 8], [7, 8])


def test_a_disk_that_stays_full_is_an_error_that_names_it_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    """After a minute, and whoever resumes has the last good state."""

    async def body() -> tuple[Bench, float]:
        bench = Bench(tmp_path, room_at=1e9)
        with bench.folder.new_checkpoint(5, keep=2) as path:
            (path / "loop.json").touch()
        saving = await bench.save(7)
        with pytest.raises(StorageError, match="No space left on device"):
            saving.result()
        return bench, bench.clock.now()

    _, seconds = asyncio.run(body())

    assert PATIENCE_S <= seconds <= PATIENCE_S + 2 * RETRY_S
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000005"]


class Writing:
    """An actor that writes one state at a time beside its steps, and once has no room for the weights."""

    role, critic = "actor", None

    def __init__(self) -> None:
        self.begun, self.refuses = False, True

    @property
    def actor(self) -> Writing:
        return self

    async def begin_state(self, path: Path) -> None:
        assert not self.begun, "a second state was begun before the first was finished"
        self.begun = True

    async def finish_state(self) -> None:
        self.begun = False

    async def save_weights(self, path: Path) -> None:
        if self.refuses:
            self.refuses = False
            raise StorageError(f"{path} is not written", why="No space left on device")


def test_a_checkpoint_refused_half_way_is_finished_so_that_another_can_begin(tmp_path: Path) -> None:
    """The states that were begun are not left so: an engine writes one at a time."""
    folder, trainer = RunFolder(tmp_path), Writing()
    learner = cast(Learner, trainer)

    async def body() -> Path:
        with pytest.raises(StorageError, match="No space left on device"):
            await begin_checkpoint(folder, learner, _progress(1), keep=1)
        return await (await begin_checkpoint(folder, learner, _progress(2), keep=1)).finish()

    assert asyncio.run(body()) == folder.latest()
    assert not trainer.begun


@pytest.mark.parametrize("failing", ["actor", "critic"])
def test_a_state_that_was_not_written_is_no_checkpoint_whatever_the_other_did(tmp_path: Path, failing: str) -> None:
    """Actor or critic: the one before stays, and both are free to begin another."""
    folder = RunFolder(tmp_path)
    groups = {"actor": Writing(), "critic": Writing()}
    learner = cast(Learner, SimpleNamespace(role="actor", **groups))

    async def full() -> None:
        groups[failing].begun = False
        raise StorageError("the state is not written", why="No space left on device")

    async def body() -> Path:
        for group in groups.values():
            group.refuses = False
        first = await (await begin_checkpoint(folder, learner, _progress(1), keep=1)).finish()
        begun = await begin_checkpoint(folder, learner, _progress(2), keep=1)
        groups[failing].finish_state = full  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="No space left on device"):
            await begun.finish()
        return first

    assert asyncio.run(body()) == folder.latest()
    assert not any(group.begun for group in groups.values())


def test_a_removed_run_folder_is_told_at_once_and_not_made_again(tmp_path: Path) -> None:
    """Nobody waits for it to come back."""
    root = tmp_path / "run"
    root.mkdir()
    bench = Bench(root)
    shutil.rmtree(root)

    with pytest.raises(StorageError, match="No such file or directory"):
        asyncio.run(bench.checkpoints.save(_progress(1)))

    assert not root.exists()


class Restored:
    """A train group that remembers what it was brought back to."""

    def __init__(self) -> None:
        self.told: list[object] = []

    async def load_state(self, path: Path) -> None:
        self.told.append(path)

    async def set_version(self, version: int) -> None:
        self.told.append(version)


def test_every_training_role_is_brought_back_or_the_run_does_not_go_on(tmp_path: Path) -> None:
    """From its own folder and told its version, the critic too; a checkpoint without one is refused by name."""
    actor, critic = Restored(), Restored()
    learner = cast(Learner, SimpleNamespace(actor=actor, critic=critic))
    with pytest.raises(CheckpointError, match="has no critic"):
        asyncio.run(restore(tmp_path, learner, _progress(7)))
    assert actor.told == []
    (tmp_path / "critic").mkdir()
    asyncio.run(restore(tmp_path, learner, _progress(7)))

    assert actor.told == [tmp_path / "actor", 7]
    assert critic.told == [tmp_path / "critic", 7]
