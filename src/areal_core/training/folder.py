"""Folders that exist only when they are complete: written beside, then renamed.

Knows: partial folders, fsync, and what a full disk looks like.
Does not know: what is in them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from areal_core.contract.errors import StorageError
from areal_core.training.group import Group, agree


def write_folder(path: Path, group: Group, write: Callable[[Path], None]) -> None:
    """Let every rank write into `<path>.partial`, then rename it to `path`. Collective.

    A folder already at `path` is replaced as a whole, and stays if anything fails.

    Raises:
        StorageError: on every rank; nothing is left behind.
    """
    partial = path.with_name(path.name + ".partial")
    first = group.rank == 0
    try:
        agree(group, lambda: _begin(partial) if first else None)
        agree(group, lambda: _write(partial, write))
        agree(group, lambda: _commit(partial, path) if first else None)
    except BaseException:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a write to `path` into a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"cannot write {path}",
            why=str(error),
            fix="free space on that disk, or choose another run folder; a folder written before is untouched",
        ) from error


def _write(partial: Path, write: Callable[[Path], None]) -> None:
    with storage_errors(partial):
        write(partial)


def _begin(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    with storage_errors(partial):
        partial.mkdir(parents=True)


def _commit(partial: Path, path: Path) -> None:
    old = path.with_name(path.name + ".old")
    with storage_errors(path):
        for file in partial.iterdir():
            _sync(file)
        _sync(partial)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        partial.rename(path)
        _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
