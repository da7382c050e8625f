"""Resume points: everything a run is, at one version, written all at once.

    checkpoints/step-000040/
      loop.json            version, which prompts are trained, totals
      actor/ critic/       exact engine state
      model/               the policy in Hugging Face format

Knows: what belongs together. The trained prompts and the trained weights are one fact:
either both are in a checkpoint or neither, so no prompt is trained twice or lost.
Does not know: how engines write their state.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from attrs import Factory, asdict, frozen

from areal_core.config.schema import CheckpointConfig
from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import CheckpointError, StorageError, storage_errors
from areal_core.loop.learner import Learns
from areal_core.loop.run_folder import RunFolder
from areal_core.loop.train_group import TrainGroup

_FORMAT = 1
PATIENCE_S, RETRY_S = 60.0, 2.0
"""How long a disk may refuse checkpoints before the run ends, and when one is tried again."""
MAX_SHARE = 0.05
"""Of a run's time that checkpoints by time may take."""


@frozen(kw_only=True)
class Progress:
    """Where a run stands between two steps. `tasks` is the task source's own state.

    `record` is of the step that made the version: its line of `metrics.jsonl` may not have been written yet.
    """

    version: int
    tasks: Mapping[str, Any]  # Any: plain data
    totals: Mapping[str, float]
    record: Mapping[str, Any] = Factory(dict)


async def save_checkpoint(folder: RunFolder, learner: Learns, progress: Progress, *, keep: int) -> Path:
    """Write a checkpoint of the current version; complete or absent.

    Raises:
        StorageError: nothing of it is left behind.
    """
    return await (await begin_checkpoint(folder, learner, progress, keep=keep, background=False)).finish()


async def begin_checkpoint(
    folder: RunFolder, learner: Learns, progress: Progress, *, keep: int, background: bool = True
) -> BegunCheckpoint:
    """Write a checkpoint of the current version, all but the states if engines write those during the next steps.

    Raises:
        StorageError: nothing of it is left behind.
    """
    groups = [group for group in (learner.actor, learner.critic) if group is not None]
    begun: list[TrainGroup] = []
    with ExitStack() as stack:
        path = stack.enter_context(folder.new_checkpoint(progress.version, keep))
        try:
            for group in groups:
                await (group.begin_state if background else group.save_state)(path / group.role)
                begun += [group] if background else []
            await learner.actor.save_weights(path / "model")
            _write_progress(path / "loop.json", progress, [group.role for group in groups])
        except Exception:
            with suppress(Exception):  # what went wrong first is told
                await _finish_states(begun)
            raise
        return BegunCheckpoint(version=progress.version, path=path, groups=begun, folder=stack.pop_all())


@frozen(kw_only=True, eq=False)
class BegunCheckpoint:
    """A checkpoint whose states are still written: complete after `finish`, absent if it raises, and until then.

    `folder` gives the folder its name when it is closed, or removes it if it is left by an error.
    """

    version: int
    path: Path
    groups: Sequence[TrainGroup]
    folder: ExitStack

    async def written(self) -> bool:
        """Tell whether `finish` has nothing left to wait for."""
        return all([await group.state_written() for group in self.groups])

    async def finish(self) -> Path:
        """Wait for every state, and return where the checkpoint is.

        Raises:
            StorageError: nothing of it is left behind.
        """
        with self.folder:
            await _finish_states(self.groups)
        return self.path.with_name(self.path.name.removesuffix(".partial"))

    def drop(self) -> None:
        """Give it up, whatever engines still write."""
        nobody_waits = asyncio.CancelledError()
        self.folder.__exit__(type(nobody_waits), nobody_waits, None)


class Checkpoints:
    """The checkpoints of one run, one after another, at most one begun and not finished. One refused is tried again."""

    def __init__(
        self,
        folder: RunFolder,
        learner: Learns,
        config: CheckpointConfig,
        tell: Callable[[int, Path], None],
        tell_refused: Callable[[int, StorageError], None],
        clock: Clock | None = None,
    ) -> None:
        """Tell of every one that is complete, by version and path, and of every one that was refused."""
        self._folder, self._learner, self._config = folder, learner, config
        self._tell, self._tell_refused, self._clock = tell, tell_refused, clock or SystemClock()
        self._begun: BegunCheckpoint | None = None
        self.saved = -1  # the version of the newest one that is complete
        self._last_s, self._cost_s = self._clock.now(), 0.0
        self._refused_s = math.inf  # when the disk began to refuse

    def due(self, version: int) -> bool:
        """Tell whether one belongs after the step that made `version`: by count, by time, or for one refused."""
        passed = self._clock.now() - self._last_s
        if self._refused_s < math.inf and passed >= RETRY_S:
            return True
        if self._config.every_steps:
            return version % self._config.every_steps == 0
        return bool(self._config.every_s) and passed >= max(self._config.every_s, self._cost_s / MAX_SHARE)

    async def save(self, progress: Progress) -> None:
        """Write one; it is complete when this returns."""
        while self.saved != progress.version:
            await self.begin(progress, at_once=True)
            if self._refused_s < math.inf:
                await self._clock.sleep(RETRY_S)

    async def begin(self, progress: Progress, *, at_once: bool = False) -> None:
        """Begin one, or write it at once if the run writes none in the background.

        Raises:
            StorageError: the disk refuses them for longer than a moment.
        """
        if self._begun is not None:
            await self._patiently(self._begun.version, self.finish())
        if self.saved != progress.version:
            await self._patiently(progress.version, self._write(progress, at_once or not self._config.background))

    async def advance(self) -> None:
        """Finish the one that was begun if that takes no waiting."""
        if self._begun is not None and await self._begun.written():
            await self._patiently(self._begun.version, self.finish())

    async def finish(self) -> None:
        """Wait for the one that was begun, if there is one."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._complete(begun.version, await begun.finish())

    async def rescue(self, progress: Progress | None) -> None:
        """Finish the one that was begun and write this last one, whatever ends the run."""
        with suppress(StorageError):
            await self.finish()
        if progress is not None and self.saved != progress.version:
            await self._write(progress, at_once=True)

    def drop(self) -> None:
        """Give up the one that was begun, if there is one."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.drop()

    async def _write(self, progress: Progress, at_once: bool) -> None:
        began, keep = self._clock.now(), self._config.keep
        if at_once:
            self._complete(progress.version, await save_checkpoint(self._folder, self._learner, progress, keep=keep))
        else:
            self._begun = await begin_checkpoint(self._folder, self._learner, progress, keep=keep)
        self._last_s = self._clock.now()
        self._cost_s = self._last_s - began

    async def _patiently(self, version: int, writing: Coroutine[None, None, None]) -> None:
        """Tell of a refusal; raise it if the first one is `PATIENCE_S` ago, or no folder is left."""
        try:
            await writing
        except StorageError as error:
            self._last_s = self._clock.now()
            if not self._folder.root.is_dir() or self._last_s - self._refused_s >= PATIENCE_S:
                raise
            if self._refused_s == math.inf:
                self._refused_s = self._last_s
                self._tell_refused(version, error)

    def _complete(self, version: int, path: Path) -> None:
        self.saved, self._refused_s = version, math.inf
        self._tell(version, path)


BEGINNING = Progress(version=0, tasks={"version": 0, "tasks": {"frontier": 0, "used": (), "attempts": {}}}, totals={})
"""Where a run goes on that ended before it had written its own: what it had trained is taken back."""


def progress_of(folder: RunFolder, checkpoint: Path | None) -> Progress:
    """Return where a run goes on: at a checkpoint, or at its beginning with the rows it began with.

    Raises:
        CheckpointError: what is there cannot be read.
    """
    if checkpoint is None and not folder.beginning.exists():
        return BEGINNING
    return read_progress(checkpoint or folder.root)


def read_progress(path: Path) -> Progress:
    """Read where a checkpoint stands.

    Raises:
        CheckpointError: it is not one of ours, or of another format.
    """
    try:
        read = json.loads((path / "loop.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read", why=str(error), fix="resume from another") from None
    if read.get("format") != _FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {read.get('format')}", why=f"this areal reads format {_FORMAT}"
        )
    return Progress(version=read["version"], tasks=read["tasks"], totals=read["totals"], record=read.get("record", {}))


def save_beginning(folder: RunFolder, tasks: Mapping[str, Any]) -> None:
    """Write where a run goes on that has no checkpoint yet, at once. Any: plain data.

    Raises:
        StorageError: it cannot be written.
    """
    unnamed = folder.beginning.with_suffix(".part")
    with storage_errors(folder.beginning):
        _write_progress(unnamed, Progress(version=0, tasks=tasks, totals={}), ())
        unnamed.rename(folder.beginning)


async def restore(path: Path, learner: Learns, progress: Progress) -> None:
    """Bring every training role back to a checkpoint."""
    if learner.critic is not None and not (path / "critic").exists():
        raise CheckpointError(f"checkpoint {path} has no critic", fix="remove `critic:` or start a new run")
    for role, group in {"actor": learner.actor, "critic": learner.critic}.items():
        if group is not None:
            await group.load_state(path / role)
            await group.set_version(progress.version)


async def _finish_states(groups: Sequence[TrainGroup]) -> None:
    """Finish the states of all groups; raise the first error after that."""
    errors: list[Exception] = []
    for group in groups:
        try:
            await group.finish_state()
        except Exception as error:  # raised below, when no group has a state that is begun
            errors.append(error)
    if errors:
        raise errors[0]


def _write_progress(path: Path, progress: Progress, roles: Sequence[str]) -> None:
    record = {"format": _FORMAT, **asdict(progress, recurse=False), "roles": roles}
    with path.open("w") as stream:
        json.dump(record, stream, default=str)
        stream.flush()
        os.fsync(stream.fileno())
