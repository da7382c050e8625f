"""Runs episodes in rollout processes: what the executor has in place of the core's own runner.

Knows: how an order becomes a message, and what an end is told to.
Does not know: how a process is talked to, or which there are.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from areal_core.contract.data import Episode
from areal_core.contract.errors import ArealError, CodecError, DatasetError
from areal_core.plugins.episodes import EndedEpisode
from areal_core.plugins.episodes import Ending as HowItEnded
from areal_core.rollout.episodes import Deadline, EpisodeOrder, EpisodeRunner, RowRejected
from areal_local.rewards.messages import carried
from areal_rollouts.messages import Ending, Made, Make
from areal_rollouts.process import Process, ProcessLost
from areal_rollouts.routing import Routing


class ProcessRunner(EpisodeRunner):
    """The core's runner, whose episodes are made elsewhere. Deadlines of groups stay here, with the gate."""

    def __init__(self, routing: Routing, **given: Any) -> None:  # Any: as for EpisodeRunner
        super().__init__(**given)
        self._routing = routing

    async def run(self, order: EpisodeOrder, deadline: Deadline, *, needed: bool = False) -> tuple[Episode | None, int]:
        """Have a process make the episode; another one, from its beginning, if that process is lost.

        Raises:
            EpisodeFailed, NoReplica, RowRejected: as the core's runner does.
            WorkerError: no process is left.
            DatasetError: the row does not travel.
        """
        heard = partial(self._heard, order)
        message = partial(_message, order)
        while True:
            async with self._routing.process(order) as process:
                try:
                    made = await self._make(process, message, deadline, heard)
                except ProcessLost:
                    continue
            heard(made)
            if isinstance(made.outcome, ArealError):
                raise made.outcome
            if needed and made.outcome is None:
                raise RowRejected
            return made.outcome, made.num_generated

    async def _make(self, process: Process, message: Any, deadline: Deadline, heard: Any) -> Made:  # Any: functions
        try:
            return await process.make(message, deadline.expired, heard)
        except CodecError as error:
            raise DatasetError(
                "a row of the data set does not travel to a rollout process",
                why=f"{error.what}: {error.why}",
                fix="keep plain data, arrays, images, dates or paths in the rows, or set rollout.processes=0",
            ) from error

    def _heard(self, order: EpisodeOrder, made: Made) -> None:
        """Count the tokens of an episode that ended, and tell the store of it."""
        self.num_generated += made.num_generated_in_all
        if self._store is None or made.ending is None:
            return
        ending = Ending(*made.ending)
        episode = made.outcome if isinstance(made.outcome, Episode) else None
        self._store.ended(
            EndedEpisode(
                ending=HowItEnded(ending.ending),
                task_id=order.task_id,
                task_index=order.index,
                attempt=order.attempt,
                member=order.member,
                version=self._version(),
                row=order.row,
                trajectories=ending.trajectories if episode is None else episode.trajectories,
                metrics={} if episode is None else episode.metrics,
                reward=ending.reward,
                started=time.time() - ending.seconds,
                seconds=ending.seconds,
                replica=ending.replica,
                error=ending.error,
            )
        )


def _message(order: EpisodeOrder, number: int) -> Make:
    return Make(
        number=number,
        task_id=order.task_id,
        index=order.index,
        attempt=order.attempt,
        member=order.member,
        row=carried(order.row),
        seed_name=order.seed_name,
        tag=order.tag,
        sampling=order.sampling,
    )
