"""The runs below a folder.

Knows: what a run folder looks like from outside, and a short id for each.
Does not know: what a run did (`state`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

MAX_RUNS = 500
MAX_DEPTH = 3
MAX_FOLDERS = 20_000
"""Folders looked into: `areal view /` must end."""
_FILES = {"metrics.jsonl", "events.jsonl"}


@frozen(kw_only=True)
class Run:
    """One run folder.

    Example: Run(id="3f2a91c07be4", name="spell/seed-1", folder=Path("/home/me/runs/spell/seed-1"), changed=1.7e9)
    """

    id: str
    """Stands in addresses; made of the name, so that no address ever is a path."""
    name: str
    folder: Path
    changed: float
    """When a file was last added to the folder or its metrics were written, in seconds since 1970."""


class Runs:
    """The runs of a folder, looked for whenever they are asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    def all(self) -> list[Run]:
        """Return the runs there are, the newest first."""
        return sorted(self._found(), key=lambda run: (-run.changed, run.name))

    def one(self, run_id: str) -> Run:
        """Return a run.

        Raises:
            KeyError: there is none with this id.
        """
        for run in self._found():
            if run.id == run_id:
                return run
        raise KeyError(run_id)

    def _found(self) -> Iterator[Run]:
        """Walk the folder; links and hidden folders are not followed, and nothing inside a run is looked at."""
        num_runs = 0
        for looked, (place, folders, files) in enumerate(os.walk(self.root)):
            if looked >= MAX_FOLDERS or num_runs >= MAX_RUNS:
                return
            folder = Path(place)
            depth = len(folder.relative_to(self.root).parts)
            folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < MAX_DEPTH else []
            if _FILES & set(files):
                folders[:] = []
                num_runs += 1
                yield self._run(folder)

    def _run(self, folder: Path) -> Run:
        inside = folder.relative_to(self.root)
        name = str(inside) if inside.parts else folder.name
        changed = max((_changed(folder / file) for file in (*_FILES, ".")), default=0.0)
        digest = hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()
        return Run(id=digest, name=name, folder=folder, changed=changed)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
