"""Checkpoints of the loop with one defect each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from areal_core.loop.checkpoint import begin_checkpoint, save_checkpoint
from areal_core.loop.run_folder import RunFolder

from .part import broken


@broken("save_checkpoint", "loop.checkpoint.whole", row="exactly-once")
async def saves_prompts_of_next_step(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Path:
    """Writes the prompts of the next version beside the weights of this one."""
    ahead = attrs.evolve(progress, tasks={"frontier": progress.tasks["frontier"] + 2})
    return await save_checkpoint(folder, learner, ahead, keep=keep)


@broken("save_checkpoint", "loop.checkpoint.all_or_nothing", row="exactly-once")
async def saves_in_place(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Path:
    """Writes straight into the final folder, so that a full disk leaves half a checkpoint there."""
    del keep
    path = folder.root / "checkpoints" / f"step-{progress.version:06d}"
    path.mkdir(parents=True)
    await learner.actor.save_state(path / "actor")
    await learner.actor.save_weights(path / "model")
    (path / "loop.json").write_text("{}")
    return path


@broken("run_folder", "loop.checkpoint.keeps", "loop.checkpoint.whole")
class SortsNamesAsText(RunFolder):
    """Takes the checkpoint whose name sorts last for the newest."""

    def checkpoints(self) -> list[Path]:
        folder = self.root / "checkpoints"
        return sorted(folder.glob("step-*"), key=lambda path: str(int(path.name.removeprefix("step-"))), reverse=True)


@broken("run_folder", "loop.checkpoint.keeps", row="exactly-once")
class PrunesFirst(RunFolder):
    """Deletes the oldest checkpoint to make room, before the new one is complete."""

    @contextmanager
    def new_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        for old in self.checkpoints()[: 1 - keep]:
            shutil.rmtree(old)
        with super().new_checkpoint(step, keep) as path:
            yield path


@broken("save_checkpoint", "loop.checkpoint.whole")
async def forgets_totals(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Path:
    """Writes a checkpoint without what the run has counted so far."""
    return await save_checkpoint(folder, learner, attrs.evolve(progress, totals={}), keep=keep)


@broken("begin_checkpoint", "loop.checkpoint.background", row="exactly-once")
async def names_it_at_once(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Any:
    """Gives a checkpoint its name when it begins, its states still unwritten."""
    begun = await begin_checkpoint(folder, learner, progress, keep=keep)
    begun.folder.close()
    named = begun.path.with_name(begun.path.name.removesuffix(".partial"))
    for group in begun.groups:
        await group.begin_state(named / group.role)
    return attrs.evolve(begun, folder=ExitStack())


@broken("begin_checkpoint", "loop.checkpoint.background_fails")
async def forgets_failures(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Any:
    """Names a checkpoint whose states could not be written."""
    begun = await begin_checkpoint(folder, learner, progress, keep=keep)
    deaf: list[Any] = [_Deaf(group) for group in begun.groups]
    return attrs.evolve(begun, groups=deaf)


@broken("begin_checkpoint", "loop.checkpoint.background_ends")
async def stops_at_the_first_failure(folder: RunFolder, learner: Any, progress: Any, *, keep: int) -> Any:
    """Leaves the state of one role begun when that of another could not be written."""
    begun = await begin_checkpoint(folder, learner, progress, keep=keep)
    one_by_one: list[Any] = [_OneByOne(begun.groups)]
    return attrs.evolve(begun, groups=one_by_one)


class _OneByOne:
    """Training roles whose states are finished until one of them is not."""

    def __init__(self, groups: Any) -> None:
        self._groups = groups

    async def finish_state(self) -> None:
        """Finish them one after another."""
        for group in self._groups:
            await group.finish_state()


class _Deaf:
    """A training role that tells of no error."""

    def __init__(self, group: Any) -> None:
        self._group = group

    async def finish_state(self) -> None:
        """Finish, or do not."""
        with suppress(OSError):
            await self._group.finish_state()
