"""One json object per line: written at once, read even after a crash.

Knows: lines, and that the last one may be torn.
Does not know: what the objects mean.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from areal_core.contract.errors import StorageError

PATIENCE_S = 60.0
"""How long lines wait for room on a disk that is full."""
_BLOCK = 1 << 16


class JsonLines:
    """An append-only file of json objects. Each line reaches the operating system before `write` returns.

    On a disk that is full lines wait for the next `write`, in order.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self.path, self._now = path, now
        self._waiting, self._full_s = b"", -math.inf
        try:
            end = _end_of_lines(path) if path.exists() else 0
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, end)
        except OSError as error:
            raise StorageError(f"{path} cannot be written", why=str(error)) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one object. Any: plain data; what json cannot hold is written as text, NaN as null.

        Raises:
            StorageError: the disk is full for longer than a moment, or the file was removed.
        """
        line = json.dumps(_plain(record), default=str, allow_nan=False, separators=(",", ":")) + "\n"
        waited, self._waiting = bool(self._waiting), self._waiting + line.encode()
        try:
            self._append()
        except OSError as error:
            now = self._now()
            self._full_s = self._full_s if waited else now
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or now - self._full_s >= PATIENCE_S:
                raise StorageError(
                    f"{self.path} cannot be written", why=str(error), fix="free space there, then resume the run"
                ) from error

    def _append(self) -> None:
        """Write what waits, or nothing of it."""
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "somebody removed it")
        written = os.write(self._file, self._waiting)
        if written < len(self._waiting):  # the disk filled up: a torn line must not stay before later ones
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._waiting = b""

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            with suppress(OSError):
                self._append()
            os.close(self._file)
            self._file = -1


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, up to the last line that is whole: one without its newline was torn by a crash.

    A file that is not there holds nothing. Any: the writer's fields.

    Raises:
        StorageError: a whole line is not json; names the line.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:  # one line in memory at a time
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise StorageError(f"line {number} of {path} is not json", why=str(error)) from error
            yield record


def rewrite(path: Path, records: Iterator[dict[str, Any]]) -> None:
    """Replace a file by these objects, at once."""
    unnamed = path.with_name(path.name + ".part")
    unnamed.unlink(missing_ok=True)
    lines = JsonLines(unnamed)
    try:
        for record in records:
            lines.write(record)
    finally:
        lines.close()
    unnamed.rename(path)


def _end_of_lines(path: Path) -> int:
    """Return where the last whole line ends; reads back from the end of the file, a block at a time."""
    with path.open("rb") as lines:
        end = lines.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK)
            lines.seek(begin)
            if (found := lines.read(end - begin).rfind(b"\n")) >= 0:
                return begin + found + 1
            end = begin
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
