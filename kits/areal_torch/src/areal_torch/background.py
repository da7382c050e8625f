"""A folder written while training goes on: begun by all ranks, written by a thread of each, named by all.

Knows: threads, and what must be on disk before the folder appears.
Does not know: what is in the files; a `Part` does.

    part.copied() on every rank -> threads write into <path>.writing -> every rank has written -> <path>
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from areal_core.contract.errors import StorageError, TrainError
from areal_torch.folder import give_name, make_empty, storage_errors, sync
from areal_torch.group import RankGroup, agree

_DROP_S = 10.0
"""How long dropping waits for a thread that writes; a slower one cleans up by itself."""


class Part(Protocol):
    """What one rank writes. No later step changes it."""

    @property
    def files(self) -> Sequence[str]:
        """Return the names of the files it writes, which no other rank does."""

    def write(self, folder: Path) -> None:
        """Write them."""


class Background:
    """At most one folder that is begun and not finished. `begin` and `finish` are collective."""

    def __init__(self, group: RankGroup) -> None:
        """Nothing is begun."""
        self._group = group
        self._writing: _Writing | None = None

    @property
    def written(self) -> bool:
        """Whether this rank has nothing left to write; how it went is told by `finish`. Not collective."""
        return self._writing is None or self._writing.done

    def begin(self, path: Path, copy: Callable[[], Part]) -> None:
        """Take a copy on every rank and return; threads write it beside `path`.

        Raises:
            TrainError: another folder was begun and not finished.
            StorageError: on every rank: there is no place for it. Nothing is begun then.
        """
        if self._writing is not None:
            raise TrainError(
                f"{path} cannot be begun",
                why=f"{self._writing.path} was begun and not finished",
                fix="call finish_state first",
            )
        partial = path.with_name(path.name + ".writing")
        parts: list[Part] = []

        def prepare() -> None:
            if self._group.rank == 0:
                make_empty(partial)
            parts.append(copy())

        try:
            agree(self._group, prepare)
        except BaseException:
            self._remove(partial)
            raise
        self._writing = _Writing(path, partial, parts[0])

    def finish(self) -> None:
        """Wait until every rank has written its part, then give the folder its name. Nothing, if none was begun.

        Raises:
            StorageError: on every rank: one could not write, or its files are not where rank 0 looks for them. What
                was at the path before is still there, and nothing else; another folder can be begun.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            sizes = agree(self._group, writing.wait)
            if self._group.rank == 0:
                agree(self._group, lambda: _name(writing, sizes))
            else:
                agree(self._group, lambda: None)
        except BaseException:
            self._remove(writing.partial)
            raise

    def drop(self) -> None:
        """Give up what was begun; this rank's files are removed. Waits for no other rank. Idempotent."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.drop()

    def _remove(self, partial: Path) -> None:
        if self._group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)


class _Writing:
    """One thread and the part it writes. The thread is a daemon: a disk that hangs keeps no process alive."""

    def __init__(self, path: Path, partial: Path, part: Part) -> None:
        self.path, self.partial = path, partial
        self._files = tuple(part.files)
        self._error: Exception | None = None
        self._sizes: dict[str, int] = {}
        self._dropped = Event()
        self._thread = Thread(target=self._run, args=(part,), name=f"write {path.name}", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> dict[str, int]:
        """Return how many bytes each file has. Raises what writing raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._sizes

    def drop(self) -> None:
        self._dropped.set()
        self._thread.join(_DROP_S)
        if self.done:
            self._discard()

    def _run(self, part: Part) -> None:
        try:
            with storage_errors(self.partial):
                part.write(self.partial)
                for name in self._files:
                    sync(self.partial / name)
                    self._sizes[name] = (self.partial / name).stat().st_size
        except Exception as error:  # told by `wait`
            self._error = error
        finally:
            if self._dropped.is_set():
                self._discard()

    def _discard(self) -> None:
        """Remove this rank's files, where they are still there; whoever comes last removes the folder."""
        for name in self._files:
            with suppress(OSError):
                (self.partial / name).unlink()
        with suppress(OSError):
            self.partial.rmdir()


def _name(writing: _Writing, sizes: Sequence[Mapping[str, int]]) -> None:
    """Give the folder its name, if all that the ranks wrote is in it."""
    for rank, files in enumerate(sizes):
        for name, size in files.items():
            file = writing.partial / name
            found = file.stat().st_size if file.exists() else None
            if found != size:
                raise StorageError(
                    f"{writing.path} is not complete",
                    why=f"rank {rank} wrote {size} bytes of {name}; rank 0 finds {'none' if found is None else found}",
                    fix="put the run folder on a file system that every rank sees",
                )
    give_name(writing.partial, writing.path)
