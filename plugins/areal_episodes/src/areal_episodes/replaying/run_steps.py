"""The numbers of a finished run, a step at a time: a long run does not have to fit into memory.

Knows: where in `metrics.jsonl` each step's line begins, and how many episodes it counts.
Does not know: which numbers are compared, or why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from areal_core.contract.errors import StorageError


class RunSteps:
    """Steps by number. `episodes` has how many each trained on."""

    def __init__(self, metrics: Path) -> None:
        """Find every whole line of the file; one that is not there holds none.

        Raises:
            StorageError: a whole line is not json; names the line.
        """
        self._path, self._begins = metrics, dict[int, int]()
        self.episodes: dict[int, int] = {}
        begin = 0
        if not metrics.exists():
            return
        with metrics.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):  # torn by a crash
                    return
                record = self._record(line, f"line {number} of {metrics}")
                self._begins[int(record["step"])], self.episodes[int(record["step"])] = begin, record["episodes"]
                begin += len(line)

    def __getitem__(self, step: int) -> dict[str, Any]:
        """Return a step's line. Any: as in `metrics.jsonl`."""
        with self._path.open("rb") as lines:
            lines.seek(self._begins[step])
            return self._record(lines.readline(), f"step {step} in {self._path}")

    def _record(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise StorageError(f"{where} is not json", why=str(error)) from error
        return record
