"""Which process makes which episode.

Knows: the processes that are there, how much each makes, and where a group is.
Does not know: how one is started, talked to or replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_core.contract.errors import ArealError
from areal_core.rollout.episodes import EpisodeOrder
from areal_rollouts.process import Process


class Routing:
    """The processes of a run. Members of a group go to one, so that their rewards may be asked about at once."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._homes: dict[str, tuple[Process, int]] = {}
        self._ended: ArealError | None = None
        self._changed = asyncio.Event()

    def add(self, process: Process) -> None:
        """Have a process take part."""
        self._processes.append(process)
        self._changed.set()

    def remove(self, process: Process) -> None:
        """Send a process nothing more. Idempotent."""
        if process in self._processes:
            self._processes.remove(process)

    def end(self, error: ArealError) -> None:
        """Tell whoever waits for a process that none will come."""
        self._ended = error
        self._changed.set()

    def __len__(self) -> int:
        """Return how many processes take part."""
        return len(self._processes)

    @asynccontextmanager
    async def process(self, order: EpisodeOrder) -> AsyncIterator[Process]:
        """Return the process an episode is made in: its group's, else the one that makes least; waits for one to come.

        Raises:
            ArealError: what `end` was told; none is there and none will come.
        """
        group = f"{order.task_id}{order.tag}.{order.attempt}"
        process, members = self._homes.get(group, (None, 0))
        if process not in self._processes:
            process, members = await self._least(), 0
        assert process is not None
        self._homes[group] = process, members + 1
        try:
            yield process
        finally:
            home, members = self._homes.get(group, (None, 0))
            if home is process:
                if members > 1:
                    self._homes[group] = process, members - 1
                else:
                    del self._homes[group]

    async def _least(self) -> Process:
        while not self._processes:
            if self._ended is not None:
                raise self._ended
            self._changed.clear()
            await self._changed.wait()
        return min(self._processes, key=lambda process: process.num_making)
