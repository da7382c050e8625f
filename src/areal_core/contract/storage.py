"""What the operating system says of a write, as the contract's StorageError.

Knows: the error to raise, and what to do about it.
Does not know: what is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_core.contract.errors import StorageError


@contextmanager
def storage_errors(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn what the operating system says of a write to `path` into a StorageError, and `others` likewise."""
    kinds: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except StorageError:
        raise
    except kinds as error:
        raise StorageError(
            f"cannot write {path}",
            why=str(error),
            fix="free space on that disk, or choose another run folder; a folder written before is untouched",
        ) from error
