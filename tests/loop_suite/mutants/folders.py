"""The core's loop with one defect each in the folder of a run, and in which rows count as one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from areal_core.contract.errors import RunFolderError
from areal_core.loop.checkpoint import save_checkpoint
from areal_core.loop.run_folder import RunFolder
from areal_core.rollout.tasks import TaskSource

from .part import broken


@broken("run_folder", "loop.folder.one_owner", "loop.folder.one_owner_of_all", row="exactly-once")
class NobodyOwnsFolder(RunFolder):
    """Lets two live runs write into one folder."""

    @contextmanager
    def held(self, *, resume: bool, archive: bool = False) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        self._prepare(resume=resume, archive=archive)
        yield


_OWNED: set[Path] = set()


@broken("run_folder", "loop.folder.one_owner_of_all", row="exactly-once")
class OwnedInThisProcess(RunFolder):
    """Remembers in the process which folders are owned: another process knows nothing of it."""

    @contextmanager
    def held(self, *, resume: bool, archive: bool = False) -> Iterator[None]:
        if self.root in _OWNED:
            raise RunFolderError(f"run folder {self.root} is in use", why="another live run writes into it")
        _OWNED.add(self.root)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._prepare(resume=resume, archive=archive)
            yield
        finally:
            _OWNED.discard(self.root)


@broken("run_folder", "loop.folder.one_owner_of_all")
class LockFileStays(RunFolder):
    """Owns a folder by a file that is there, which a killed run leaves behind."""

    @contextmanager
    def held(self, *, resume: bool, archive: bool = False) -> Iterator[None]:
        if (self.root / ".lock").exists():
            raise RunFolderError(f"run folder {self.root} is in use", why="another live run writes into it")
        with super().held(resume=resume, archive=archive):
            try:
                yield
            finally:
                (self.root / ".lock").unlink()


@broken("run_folder", "loop.folder.one_owner")
class MovesBeforeItAsks(RunFolder):
    """Moves an earlier run aside before it knows whether that run is still alive."""

    @contextmanager
    def held(self, *, resume: bool, archive: bool = False) -> Iterator[None]:
        if archive and self.metrics.exists():
            self._archive()
        with super().held(resume=resume, archive=archive):
            yield


@broken("run_folder", "loop.folder.earlier_run", row="exactly-once")
class MixesRuns(RunFolder):
    """Starts a new run among the files of an earlier one."""

    def _prepare(self, *, resume: bool, archive: bool) -> None:
        if resume:
            super()._prepare(resume=resume, archive=archive)


@broken("run_folder", "loop.folder.earlier_run")
class ArchivesInOnePlace(RunFolder):
    """Moves every earlier run to the same place, over the one before."""

    def _archive(self) -> None:
        shutil.rmtree(self.root.with_name(f"{self.root.name}.1"), ignore_errors=True)
        super()._archive()


@broken("run_folder", "loop.folder.earlier_run")
class ResumesFromNothing(RunFolder):
    """Takes a run with nothing to resume for a new one."""

    def _prepare(self, *, resume: bool, archive: bool) -> None:
        super()._prepare(resume=resume and self.latest() is not None, archive=archive)


@broken("run_folder", "loop.folder.partial", row="exactly-once")
class PartialIsCheckpoint(RunFolder):
    """Takes a folder that a kill left half-written for a checkpoint."""

    def checkpoints(self) -> list[Path]:
        found = [path for path in (self.root / "checkpoints").glob("step-*") if path.is_dir()]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-").removesuffix(".partial")))


@broken("run_folder", "loop.folder.partial")
class WritesIntoTheRest(RunFolder):
    """Writes a checkpoint into what a killed save of the same step left."""

    @contextmanager
    def new_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        left = self.root / "checkpoints" / f"step-{step:06d}.partial"
        kept = list(left.glob("left*")) if left.exists() else []
        texts = {path.name: path.read_text() for path in kept}
        with super().new_checkpoint(step, keep) as path:
            for name, text in texts.items():
                (path / name).write_text(text)
            yield path


@broken("run_folder", "loop.folder.interrupted", row="exactly-once")
class ReplacesInPlace(RunFolder):
    """Removes the checkpoint of a step before the new one of that step is complete."""

    @contextmanager
    def new_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        shutil.rmtree(self.root / "checkpoints" / f"step-{step:06d}", ignore_errors=True)
        with super().new_checkpoint(step, keep) as path:
            yield path


@broken("run_folder", "loop.folder.interrupted")
class CompleteWhenInterrupted(RunFolder):
    """Takes a save that was cancelled for one that came to its end."""

    @contextmanager
    def new_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        stopped: BaseException | None = None
        with super().new_checkpoint(step, keep) as path:
            try:
                yield path
            except Exception:
                raise
            except BaseException as error:
                stopped = error
        if stopped is not None:
            raise stopped


@broken("run_folder", "loop.folder.order", row="exactly-once")
class SixDigitsSort(RunFolder):
    """Sorts checkpoints by their names, which have six digits until they have seven."""

    def checkpoints(self) -> list[Path]:
        return sorted(super().checkpoints(), key=lambda path: path.name)


@broken("tasks", "loop.tasks.equal_rows", row="exactly-once")
class EqualRowsOnce(TaskSource):
    """Takes rows that are equal for one."""

    def __init__(self, dataset: Sequence[Mapping[str, Any]], *, seed: int, shuffle: bool = True) -> None:
        own = {repr(sorted(row.items())): row for row in dataset}
        super().__init__(list(own.values()), seed=seed, shuffle=shuffle)


@broken("tasks", "loop.tasks.equal_rows")
class SameObjectOnce(TaskSource):
    """Takes a row that is given twice for one."""

    def __init__(self, dataset: Sequence[Mapping[str, Any]], *, seed: int, shuffle: bool = True) -> None:
        own = {id(row): row for row in dataset}
        super().__init__(list(own.values()), seed=seed, shuffle=shuffle)


@broken("save_checkpoint", "loop.checkpoint.every_role", row="exactly-once")
async def leaves_critic_out(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Path:
    """Saves the critic in every second checkpoint only."""
    if learner.critic is not None and progress.version % 2:
        learner = SimpleNamespace(actor=learner.actor, critic=None)
    return await save_checkpoint(folder, learner, progress, keep=keep)


@broken("save_checkpoint", "loop.checkpoint.every_role")
async def saves_actor_as_critic(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Path:
    """Writes the actor's state where the critic's belongs."""
    critic = learner.critic and SimpleNamespace(role="critic", save_state=learner.actor.save_state)
    both = SimpleNamespace(actor=learner.actor, critic=critic)
    return await save_checkpoint(folder, both, progress, keep=keep)
