"""Broken workflows: episodes that know of each other, that do not end, or that leave something.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import Episode
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.ids import GroupId
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import Session
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.workflow_parts import Bent, BentSession


@mutant("workflow/single_turn", killers=("workflow.episode.names",))
class GroupIsTask(Bent):
    """Puts every episode in a group of its own."""

    def bent(self, episode: Episode) -> Episode:
        return attrs.evolve(episode, group_id=GroupId(episode.task_id))


@mutant("workflow/single_turn", killers=("workflow.company.at_once",), row="tenants")
class PromptOfTheLast(Bent):
    """Keeps the episode's names in the instance, where the episodes beside it write theirs."""

    current: Any = None

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        self.current = engine
        return await super().arun_episode(engine, data)

    def bent(self, episode: Episode) -> Episode:
        return attrs.evolve(episode, task_id=self.current.task_id, group_id=self.current.group_id)


@mutant("workflow/single_turn", killers=("workflow.company.at_once",), row="one-straggler", incident="NeMo-RL#3238")
class OneEpisodeAtATime(Bent):
    """Makes one episode after another."""

    lock: asyncio.Lock | None = None

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        self.lock = self.lock or asyncio.Lock()
        async with self.lock:
            return await super().arun_episode(engine, data)


@mutant("workflow/single_turn", killers=("workflow.company.repeatable",))
class RewardsAddUp(Bent):
    """Tells in its metrics what all episodes so far were worth."""

    total = 0.0

    def bent(self, episode: Episode) -> Episode:
        self.total += episode.trajectories[0].reward
        return attrs.evolve(episode, metrics={**episode.metrics, "total": self.total})


@mutant("workflow/single_turn", killers=("workflow.company.row_unchanged",))
class RowKeepsAnswer(SingleTurnWorkflow):
    """Writes into the row what came of it."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        episode = await super().arun_episode(engine, data)
        data["reward"] = episode.trajectories[0].reward  # type: ignore[index]
        return episode


@mutant("workflow/single_turn", killers=("workflow.cancel.prompt",))
class CancelSwallowed(Bent):
    """Takes being cancelled for a failed generation."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            try:
                return await super().generate(input_ids, sampling, **more)
            except asyncio.CancelledError:
                raise GenerationFailed("the generation was cancelled") from None


@mutant("workflow/single_turn", killers=("workflow.cancel.prompt",))
class RequestsOutliveEpisode(Bent):
    """Shields its requests from being cancelled with the episode."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            return await asyncio.shield(asyncio.ensure_future(super().generate(input_ids, sampling, **more)))


@mutant("workflow/single_turn", killers=("workflow.cancel.others",))
class OneCancelsAll(Bent):
    """Cancels all episodes at work with the one that is cancelled."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.at_work: set[Any] = set()

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        task = asyncio.current_task()
        self.at_work.add(task)
        try:
            return await super().arun_episode(engine, data)
        except asyncio.CancelledError:
            for other in self.at_work - {task}:
                other.cancel()
            raise
        finally:
            self.at_work.discard(task)


@mutant("workflow/single_turn", killers=("workflow.tasks.none_left",))
class AsksOnceMore(Bent):
    """Begins a request of which nobody waits for the end."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        episode = await super().arun_episode(engine, data)
        self.left = asyncio.create_task(self._wait())
        return episode

    async def _wait(self) -> None:
        await asyncio.sleep(3600.0)


@mutant("workflow/single_turn", killers=("workflow.loop.not_blocked",))
class SleepsInTheLoop(Bent):
    """Sleeps in the event loop, as blocking clients do between two tries."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        time.sleep(0.001)  # noqa: ASYNC251
        return await super().arun_episode(engine, data)
