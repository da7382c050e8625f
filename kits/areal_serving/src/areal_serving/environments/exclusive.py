"""One at a time: two commands never work on one environment.

Knows: a lock file beside the environment.
Does not know: what is done meanwhile.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_core.contract.errors import EngineMissing, StorageError


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold an environment for this process; the kernel lets go if the process dies.

    Raises:
        EngineMissing: another command works on it.
        StorageError: the lock file cannot be written.
    """
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StorageError(
            f"{path} cannot be written", why=str(exc), fix="choose another folder: --folder DIR"
        ) from exc
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise EngineMissing(
                f"another command is creating or removing {folder}",
                why=f"it holds {path.name}",
                fix="wait until it has ended, then try again",
            ) from exc
        yield
    finally:
        os.close(handle)
