"""Batches of rows: every row once per epoch, in a seeded order, across resumes.

Knows: how many rows make a batch, and that rows which are too long are left out and told.
Does not know: what a row becomes (`rows`), or how a batch is trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_core.contract.errors import DatasetError
from areal_core.observe.events import WARNING
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.stats import RolloutStats
from areal_core.rollout.tasks import TaskSource
from areal_supervised.rows import Encoder

_ADVICE = "shorten them, or raise options.max_length or actor.max_tokens_per_microbatch if one of these is the bound"


class RowBatches:
    """Satisfies `areal_core.loop.train_loop.Batches`."""

    def __init__(
        self, source: TaskSource, encoder: Encoder, size: int, *, version: int, tell: Callable[..., None]
    ) -> None:
        """Begin where `source` stands; `tell` takes an event when the first row is left out."""
        self._source, self._encoder, self._size, self._tell = source, encoder, size, tell
        self._version, self._consumed, self.left_out = version, 0, 0

    async def next_batch(self) -> Sequence[EpisodeGroup]:
        """Return the next batch, a group per row.

        Raises:
            DatasetError: a row cannot be read, or every one is too long.
        """
        return await asyncio.to_thread(self._next)

    def set_version(self, version: int) -> None:
        """Take the version that is trained next."""
        self._version = version

    def state(self) -> Mapping[str, Any]:
        """Return what a resume needs. Any: plain data."""
        return {"version": self._version, "tasks": self._source.state()}

    def stats(self) -> RolloutStats:
        """Return how many rows were trained on and left out, as counts of groups."""
        return RolloutStats(
            version=self._version,
            running=0,
            buffered=0,
            admitted=self._consumed + self.left_out,
            consumed=self._consumed,
            rejected=self.left_out,
            failed=0,
            dropped=0,
            evaluated=0,
            tokens_generated=0,
            reward_sum=0.0,
            episodes_consumed=self._consumed,
            max_staleness_seen=0,
        )

    def _next(self) -> list[EpisodeGroup]:
        groups: list[EpisodeGroup] = []
        misses = 0
        while len(groups) < self._size:
            task = self._source.next()
            episode = self._encoder.episode(task)
            self._source.use(task.index)
            if episode is None:
                misses += 1
                self._leave_out()
                if misses >= len(self._source):
                    raise DatasetError(
                        f"all {misses:,} rows looked at in turn are too long", why=self._bound(), fix=_ADVICE
                    )
                continue
            misses = 0
            groups.append(
                EpisodeGroup(task=task, episodes=(episode,), num_generated=0, oldest_versions=(None,), staleness=(0,))
            )
        self._consumed += len(groups)
        return groups

    def _leave_out(self) -> None:
        self.left_out += 1
        if self.left_out == 1:
            says = f"rows are too long and left out: {self._bound()}; column `rejected` counts them"
            self._tell(
                WARNING, name="rows_too_long", value=1, threshold=self._encoder.longest, says=says, advice=_ADVICE
            )

    def _bound(self) -> str:
        return f"a sequence has at most {self._encoder.longest:,} tokens"
