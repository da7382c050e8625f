"""Spoiled files: pickles that tell when they are opened, flipped bytes, full disks.

Knows: files.
Does not know: what reads or writes them.
"""

from __future__ import annotations

import contextlib
import pickle
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any


class Bomb:
    """Something that must not be executed; if it is, it leaves a file."""

    def __init__(self, folder: Path) -> None:
        self._mark = folder / "went-off"

    def __enter__(self) -> Bomb:
        self._mark.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mark.unlink(missing_ok=True)

    @property
    def code(self) -> str:
        """Return a line of Python that sets it off."""
        return f"open({str(self._mark)!r}, 'w').close()"

    @property
    def went_off(self) -> bool:
        """Tell whether it was executed."""
        return self._mark.exists()

    def __reduce__(self) -> tuple[Any, ...]:  # Any: what pickle calls with what
        return exec, (self.code,)


def write_pickle(file: Path, bomb: Bomb) -> None:
    """Write what a careless `torch.load` or `pickle.load` would execute."""
    file.write_bytes(pickle.dumps(bomb))


def flipped(folder: Path, target: Path) -> Iterator[tuple[Path, str]]:
    """Copy `folder` to `target` again and again, each time with one byte of one file turned over.

    Places: the beginning, the end and twenty-two between of each file. Yields the copy and where the byte lies.
    """
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = file.stat().st_size
        for part in range(24):
            place = min(size - 1, size * part // 23)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
            spoiled = target / file.relative_to(folder)
            data = bytearray(spoiled.read_bytes())
            data[place] ^= 0x01
            spoiled.write_bytes(bytes(data))
            yield target, f"byte {place} of {size} of {file.relative_to(folder)}"


@contextlib.contextmanager
def files_at_most(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `num_bytes`: what a full disk looks like to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder with its content, and every folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"/" for path in folder.rglob("*")}
