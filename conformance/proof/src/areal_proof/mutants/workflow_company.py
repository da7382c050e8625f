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
from areal_core.contract.workflow import Session
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, row
from areal_proof.mutants.workflow_parts import Bent, BentSession

breaks = breaking("workflow/single_turn", Bent)


@breaks("arun_episode", "workflow.company.at_once", incident="NeMo-RL#3238", row="one-straggler", lock=None)
async def OneEpisodeAtATime(original: Original, self: Any) -> Any:
    """Makes one episode after another."""
    self.lock = self.lock or asyncio.Lock()
    async with self.lock:
        return await original()


@breaks("bent", "workflow.company.repeatable", total=0.0)
def RewardsAddUp(self: Any, episode: Episode) -> Any:
    """Tells in its metrics what all episodes so far were worth."""
    self.total += episode.trajectories[0].reward
    return attrs.evolve(episode, metrics={**episode.metrics, "total": self.total})


@breaks("arun_episode", "workflow.company.row_unchanged", base=SingleTurnWorkflow)
async def RowKeepsAnswer(original: Original, data: Mapping[str, Any]) -> Any:
    """Writes into the row what came of it."""
    episode = await original()
    data["reward"] = episode.trajectories[0].reward  # type: ignore[index]
    return episode


@breaks("generate", "workflow.cancel.prompt", part=("session", BentSession))
async def CancelSwallowed(original: Original) -> Any:
    """Takes being cancelled for a failed generation."""
    try:
        return await original()
    except asyncio.CancelledError:
        raise GenerationFailed("the generation was cancelled") from None


ROWS = breaks.rows(
    row("GroupIsTask", "Puts every episode in a group of its own.", "workflow.episode.names",
        bent=lambda episode: attrs.evolve(episode, group_id=GroupId(episode.task_id))),
    row("PromptOfTheLast", "Keeps the episode's names in the instance, where the episodes beside it write theirs.",
        "workflow.company.at_once", row="tenants", current=None,
        arun_episode=before(lambda self, engine: setattr(self, "current", engine)),
        bent=lambda self, episode: attrs.evolve(episode, task_id=self.current.task_id, group_id=self.current.group_id)),
    row("RequestsOutliveEpisode", "Shields its requests from being cancelled with the episode.",
        "workflow.cancel.prompt", part=("session", BentSession),
        generate=lambda original, input_ids, sampling, more: asyncio.shield(asyncio.ensure_future(original(input_ids,
            sampling, **more)))),
)  # fmt: skip


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


@breaks("arun_episode", "workflow.loop.not_blocked")
async def SleepsInTheLoop(original: Original) -> Any:
    """Sleeps in the event loop, as blocking clients do between two tries."""
    time.sleep(0.001)  # noqa: ASYNC251
    return await original()
