"""The folder of one run: who owns it, what is in it, where the last resume point is.

    config.yaml metrics.jsonl events.jsonl loop.json logs/ checkpoints/step-000040/
    report.html reward.png summary.json

Knows: names, the lock, atomic directories.
Does not know: what a checkpoint holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_core.config.schema import RunConfig
from areal_core.contract.errors import RunFolderError, StorageError

_PREFIX = "step-"


class RunFolder:
    """One run's files. Write to them only while it is `held`."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.config = self.root / "config.yaml"
        """The resolved configuration, secrets redacted."""
        self.metrics = self.root / "metrics.jsonl"
        """One JSON object per step."""
        self.events = self.root / "events.jsonl"
        """The journal of what happened."""
        self.beginning = self.root / "loop.json"
        """Where the run goes on as long as it has no checkpoint; it is there before the first episode."""
        self.logs = self.root / "logs"
        """One log per worker."""
        self.summary = self.root / "summary.json"
        self.report = self.root / "report.html"
        self.picture = self.root / "reward.png"

    @classmethod
    def of(cls, config: RunConfig) -> RunFolder:
        """Return the folder a configuration names: `out`, or `runs/<name>`."""
        return cls(Path(config.out or f"runs/{config.name}"))

    @contextmanager
    def held(self, *, resume: bool, archive: bool = False) -> Iterator[None]:
        """Own the folder for the length of the block; the end of the process ends it too.

        Args:
            resume: continue the run the folder holds.
            archive: move an earlier run out of the way, to `<folder>.1`, `.2`, ...

        Raises:
            RunFolderError: another live run owns it; it holds a run and neither was asked for;
                or there is nothing to resume.
            StorageError: it cannot be written.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("a+")
        except OSError as error:
            raise StorageError(
                f"run folder {self.root} cannot be written", why=str(error), fix="choose another folder with out=DIR"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(
                    f"run folder {self.root} is in use",
                    why="another live run writes into it",
                    fix="wait for it, stop it with Ctrl-C, or choose another folder with out=DIR",
                ) from None
            self._prepare(resume=resume, archive=archive)
            yield

    def live(self) -> bool:
        """Tell whether a run owns the folder."""
        try:
            with (self.root / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _prepare(self, *, resume: bool, archive: bool) -> None:
        """Refuse, or move aside, what does not fit with the run about to start."""
        self.drop_partial()
        steps = self.metrics.exists() and self.metrics.stat().st_size > 0
        # A run that has not come to its beginning is resumed like a new one; a replay, say, has steps and none.
        if resume and not self.how_to_go_on() and (steps or not self.events.exists()):
            raise RunFolderError(
                f"run folder {self.root} has nothing to resume",
                why=f"it holds neither a complete checkpoint nor {self.beginning.name}, where a run begins",
                fix="start the run without --resume, into another folder with out=DIR",
            )
        if resume or not self.metrics.exists():
            return
        # A run that failed before its first step does not stand in the way of whoever corrects it.
        if not archive and (steps or self.latest() is not None):
            resumable = f"continue it with: areal train --resume {self.root}, or "
            raise RunFolderError(
                f"run folder {self.root} already holds a run",
                why="its metrics and checkpoints would be mixed up",
                fix=f"{resumable if self.how_to_go_on() else ''}move it aside and start anew with --archive, "
                "or choose another folder with out=DIR",
            )
        self._archive()

    def checkpoints(self) -> list[Path]:
        """Return complete checkpoints, oldest first."""
        folder = self.root / "checkpoints"
        found = [p for p in folder.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdigit()]
        return sorted(found, key=lambda p: int(p.name.removeprefix(_PREFIX)))

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint."""
        complete = self.checkpoints()
        return complete[-1] if complete else None

    def how_to_go_on(self) -> str:
        """Say from where the run can go on, and with which command; nothing as long as it has not begun."""
        latest = self.latest()
        if latest is None and not self.beginning.exists():
            return ""
        where = f"{latest.name} is saved" if latest else "no checkpoint yet, the run goes on from its beginning"
        return f"{where}. To continue: areal train --resume {self.root}"

    def drop_partial(self) -> None:
        """Remove what a run that was killed, or its workers, left of checkpoints that were not complete."""
        for partial in (self.root / "checkpoints").glob(f"{_PREFIX}*.partial"):
            shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def new_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """Fill a folder that becomes checkpoint `step` all at once, or not at all.

        Older checkpoints beyond `keep` are deleted only after the new one is complete.
        """
        final = self.root / "checkpoints" / f"{_PREFIX}{step:06d}"
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            final.parent.mkdir(exist_ok=True)  # whoever removed the run folder does not get it again
            partial.mkdir()
            yield partial
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            _sync_folder(final.parent)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise StorageError(
                f"checkpoint of step {step} was not written",
                why=f"{error.what}: {error.why}" if isinstance(error, StorageError) else str(error),
                fix=f"free space on the disk of {self.root}; the previous checkpoint is untouched",
            ) from error
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _archive(self) -> None:
        """Move an earlier run's files into the first free `<folder>.N`."""
        number = 1
        while (target := self.root.with_name(f"{self.root.name}.{number}")).exists():
            number += 1
        target.mkdir(mode=self.root.stat().st_mode & 0o777)
        for item in self.root.iterdir():
            if item.name != ".lock":
                item.rename(target / item.name)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
