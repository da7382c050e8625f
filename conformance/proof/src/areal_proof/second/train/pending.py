"""A state that is written while its engine goes on: one job of a pool of one thread.

Knows: when the folder may have its name.
Does not know: what is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from areal_proof.second.train import checkpoint
from areal_proof.second.train.ranks import Ranks


class Pending:
    """Begun when it is made, collectively; then `finish`, collectively, or `drop`, alone."""

    def __init__(self, path: Path, ranks: Ranks, write: Callable[[Path], None]) -> None:
        """Make the folder to write into and start writing; StorageError on every rank if that cannot be."""
        self.path, self.ranks = path, ranks
        self.building = path.with_name(f"{path.name}.pending")
        try:
            ranks.agree(lambda: checkpoint.stored(path, lambda: checkpoint.make(self.building, ranks)))
        except BaseException:
            self.clean()
            raise
        self._pool = ThreadPoolExecutor(max_workers=1)
        self.job = self._pool.submit(checkpoint.stored, path, partial(write, self.building))
        self._pool.shutdown(wait=False)

    @property
    def written(self) -> bool:
        """Whether this rank is done, well or not."""
        return self.job.done()

    def finish(self) -> None:
        """Wait for every rank, then name the folder."""
        path, ranks = self.path, self.ranks
        try:
            ranks.agree(self.job.result)
            ranks.agree(lambda: checkpoint.stored(path, lambda: checkpoint.name(self.building, path, ranks)))
        except BaseException:
            self.clean()
            raise

    def drop(self) -> None:
        """Wait for this rank's thread, then remove the folder; so does every rank, and the last one finds it whole."""
        self._pool.shutdown(wait=True)
        shutil.rmtree(self.building, ignore_errors=True)

    def clean(self) -> None:
        """Remove what was written, on rank 0."""
        if self.ranks.rank == 0:
            shutil.rmtree(self.building, ignore_errors=True)
