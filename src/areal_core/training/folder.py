"""Folders that exist only when they are complete: written beside, then renamed.

Knows: partial folders, fsync, and what a full disk looks like.
Does not know: what is in them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
    try:
        agree(group, lambda: _guarded(partial, lambda: _begin(partial)) if group.rank == 0 else None)
        agree(group, lambda: _guarded(partial, lambda: write(partial)))
        agree(group, lambda: _guarded(partial, lambda: _commit(partial, path)) if group.rank == 0 else None)
    except BaseException:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _guarded(partial: Path, action: Callable[[], None]) -> None:
    try:
        action()
    except (OSError, SafetensorError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"cannot write {partial.with_suffix('')}",
            why=str(error),
            fix="free space on that disk, or choose another run folder; the folder written before is untouched",
        ) from error


def _begin(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _commit(partial: Path, path: Path) -> None:
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    old = path.with_name(path.name + ".old")
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
