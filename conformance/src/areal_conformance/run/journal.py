"""What happened so far, one JSON line at a time, so that a crash loses nothing.

    {"opened": record, "planned": ids, "jobs": 2}   {"began": id, "limit_s": 95.0}   {"ended": row}   {"noted": text}
    {"refused": text, "kind": "ConfigError"}   {"closed": true}   {"again": id}

The last means that the process ends and a fresh one has to go on with the rest, with the same file. Processes beside
each other have a file each.

Knows: the lines, written by the process that makes the checks and read by the one that shows them.
Does not know: either process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import Factory, define

from areal_conformance.run.record import Record, Row, plain, record_from, row_from


class Journal:
    """The writing end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, **line: object) -> None:
        """Add a line; it is on its way to the reader when this returns."""
        self._file.write(json.dumps({key: plain(value) for key, value in line.items()}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


@define
class Story:
    """What the lines read so far amount to."""

    record: Record | None = None
    planned: tuple[str, ...] = ()
    jobs: int = 1
    """Processes that may make checks at once."""
    running: str = ""
    limit_s: float = 0.0
    rows: list[Row] = Factory(list)
    refused: str = ""
    notes: list[str] = Factory(list)
    closed: bool = False
    again: str = ""
    said: str = ""
    """The end of what failed processes wrote."""

    def take(self, line: dict[str, Any]) -> None:
        """Take one line in. Any: JSON."""
        if "opened" in line:
            if self.record is None:
                self.record, self.planned = record_from(line["opened"]), tuple(line["planned"])
                self.jobs = line.get("jobs", 1)
        elif "began" in line:
            self.running, self.limit_s = line["began"], line["limit_s"]
        elif "ended" in line:
            self.rows.append(row_from(line["ended"]))
            self.running = ""
        elif "noted" in line:
            self.notes.append(line["noted"])
        elif "refused" in line:
            self.refused = line["refused"]
        elif "closed" in line:
            self.closed = True
        elif "again" in line:
            self.again = line["again"]


class Reader:
    """The reading end: gives the lines that came since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[dict[str, Any]]:
        """Return new whole lines; a torn one is left for the next time. Any: JSON."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
