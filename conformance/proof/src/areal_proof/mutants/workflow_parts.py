"""A session and a workflow that can be bent at one place, for broken workflows.

Knows: what passes through a workflow.
Does not know: any defect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.optional import ToolParse
from areal_core.contract.workflow import RewardInput, RewardResult, Session
from areal_tasks.workflows.single_turn import SingleTurnWorkflow


class BentSession:
    """A session of which one method is bent."""

    def __init__(self, whole: Session) -> None:
        self.whole = whole
        self.task_id, self.group_id = whole.task_id, whole.group_id
        self.sampling, self.tokenizer = whole.sampling, whole.tokenizer
        self.image_token_id = whole.image_token_id

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        """Generate. Any: token ids, and what else is asked."""
        return await self.whole.generate(input_ids, sampling, **more)

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read an output. Any: JSON."""
        return await self.whole.parse_tool_calls(text, tools)

    async def reward(self, value: RewardInput) -> RewardResult:
        """Score."""
        return await self.whole.reward(value)


class Bent(SingleTurnWorkflow):
    """The workflow of the core, of which the session, the episode or its trajectory is bent."""

    session: type[BentSession] = BentSession

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make an episode, and bend it. Any: as in the contract."""
        return self.bent(await super().arun_episode(self.session(engine), data))

    def bent(self, episode: Episode) -> Episode:
        """Return the episode, bent."""
        (trajectory,) = episode.trajectories
        return attrs.evolve(episode, trajectories=(self.turned(trajectory),))

    def turned(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory, bent."""
        return trajectory


def restamped(trajectory: Trajectory, where: Any, **columns: Any) -> Trajectory:
    """Return a trajectory with other values at some of its tokens. Any: as tensors take them."""
    changed = {name: getattr(trajectory, name).clone() for name in columns}
    for name, values in columns.items():
        changed[name][where] = values
    return attrs.evolve(trajectory, **changed)
