"""Folders that exist only when they are complete: written beside, then renamed.

Knows: partial folders, fsync, and what a full disk looks like.
Does not know: what is in them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from safetensors import SafetensorError

from areal_core.contract import errors as contract_errors
from areal_torch.exchange import exchange
from areal_torch.group import RankGroup, agree


def write_folder(path: Path, group: RankGroup, write: Callable[[Path], None]) -> None:
    """Let every rank write into `<path>.partial`, then rename it to `path`. Collective.

    A folder already at `path` is replaced as a whole, and stays if anything fails.

    Raises:
        StorageError: on every rank; nothing is left behind.
    """
    partial = path.with_name(path.name + ".partial")
    first = group.rank == 0
    try:
        agree(group, lambda: make_empty(partial) if first else None)
        agree(group, lambda: _write(partial, write))
        agree(group, lambda: give_name(partial, path) if first else None)
    except BaseException:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def storage_errors(path: Path) -> AbstractContextManager[None]:
    """Turn what the operating system or safetensors says of a write to `path` into a StorageError."""
    return contract_errors.storage_errors(path, SafetensorError)


def make_empty(partial: Path) -> None:
    """Make a folder to write into, and the folders above it; what lies there is removed.

    Raises:
        StorageError: it cannot be made.
    """
    shutil.rmtree(partial, ignore_errors=True)
    with storage_errors(partial):
        partial.mkdir(parents=True)


def give_name(partial: Path, path: Path) -> None:
    """Rename a folder that is complete to `path`, all of it on disk; the one there before is replaced.

    At once, where the file system can let two names change places: a process that is killed leaves one or the other.

    Raises:
        StorageError: what was at `path` is still there.
    """
    old = path.with_name(path.name + ".old")
    with storage_errors(path):
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        if path.exists() and exchange(partial, path):
            old = partial
        else:
            _rename_over(partial, path, old)
        sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_over(partial: Path, path: Path, old: Path) -> None:
    """Give `partial` the name `path` where two names cannot change places: what is there becomes `old` for a moment."""
    if not path.exists():
        partial.rename(path)
        return
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    try:
        partial.rename(path)
    except BaseException:
        old.rename(path)
        raise


def _write(partial: Path, write: Callable[[Path], None]) -> None:
    with storage_errors(partial):
        write(partial)
