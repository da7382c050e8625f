"""Lines of a file that grows, each read once, in bounded memory.

Knows: that the last line may be half written, a line may be broken, and a resumed run replaces the file.
Does not know: what a line means.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
"""Bytes read at a time; a line that is longer is left out."""
BUDGET = 32 << 20
"""Bytes read per call: a long file is caught up with over several."""

Record = dict[str, Any]  # Any: the writer's fields


class GrowingLines:
    """One JSON lines file, followed from its beginning.

    Args:
        take: is given each object once, in order.
        forget: is called when the file was replaced; all of it is given again.
    """

    def __init__(self, path: Path, *, take: Callable[[Record], None], forget: Callable[[], None]) -> None:
        self.path = path
        self._take, self._forget = take, forget
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._too_long = False
        self.num_broken = 0
        """Whole lines that are no JSON object, or too long."""
        self.caught_up = True

    def read(self, budget: int = BUDGET) -> None:
        """Read what is new, up to the last whole line. A file that is not there, or no plain one, holds nothing."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            if self._file_id != (found.st_dev, found.st_ino) or found.st_size < self._offset:
                self._begin_again((found.st_dev, found.st_ino))
            file.seek(self._offset)
            end, self.caught_up = self._offset + budget, False
            while self._offset + BLOCK <= end:
                block = file.read(BLOCK)
                whole = block.rfind(b"\n") + 1
                if not whole and len(block) < BLOCK:
                    self.caught_up = True
                    break
                self._offset += whole or len(block)
                self._lines(block[:whole] if whole else b"", cut=not whole)
                file.seek(self._offset)

    def _begin_again(self, file_id: tuple[int, int]) -> None:
        if self._file_id is not None:
            self._forget()
        self._file_id, self._offset, self._too_long, self.num_broken = file_id, 0, False, 0

    def _lines(self, block: bytes, *, cut: bool) -> None:
        """Take a block's lines; `cut`: it was all one line that goes on after it."""
        if cut:
            self._too_long = True
            return
        for line in block.split(b"\n")[:-1]:
            if self._too_long:  # the end of a line whose beginning was left out
                self._too_long = False
                self.num_broken += 1
                continue
            try:
                record = json.loads(line, parse_constant=lambda _: None)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                self._take(record)
            else:
                self.num_broken += 1
