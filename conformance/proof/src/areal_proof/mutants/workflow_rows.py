"""Broken workflows: rows that are taken for others, cut, or worth something else.

Knows: how the workflow of the core is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.workflow_parts import Bent, BentSession


class _Remembers(SingleTurnWorkflow):
    """Remembers prompts by a key."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._kept: dict[object, list[int]] = {}

    def key(self, prompt: str) -> object:
        """Return what a prompt is remembered by."""
        return prompt

    def _encode(self, tokenizer: Any, prompt: str) -> list[int]:
        return list(self._kept.setdefault(self.key(prompt), tokenizer.encode(prompt)))


@mutant("workflow/single_turn", killers=("workflow.rows.own_prompt",), row="token-fidelity")
class PromptsByBeginning(_Remembers):
    """Remembers prompts by their first characters."""

    def key(self, prompt: str) -> object:
        return prompt[:40]


@mutant("workflow/single_turn", killers=("workflow.rows.own_prompt",), row="token-fidelity")
class PromptsByEnds(_Remembers):
    """Remembers prompts by how they begin, how they end and how long they are."""

    def key(self, prompt: str) -> object:
        return prompt[:20], prompt[-20:], len(prompt)


@mutant("workflow/single_turn", killers=("workflow.rows.own_prompt",))
class PromptsByPlace(_Remembers):
    """Remembers only so many prompts, and takes one that was forgotten for the one in its place."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._places: dict[str, int] = {}

    def key(self, prompt: str) -> object:
        return self._places.setdefault(prompt, len(self._places) % 256)


@mutant("workflow/single_turn", killers=("workflow.rows.whole",))
class RowOfText(Bent):
    """Gives the reward the text columns of the row only."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            row = {name: column for name, column in value.row.items() if isinstance(column, str)}
            return await super().reward(attrs.evolve(value, row=row))


@mutant("workflow/single_turn", killers=("workflow.rows.whole",))
class RowThroughJson(Bent):
    """Gives the reward the row as json tells it again."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            return await super().reward(attrs.evolve(value, row=json.loads(json.dumps(dict(value.row)))))


@mutant("workflow/single_turn", killers=("workflow.rows.whole",))
class RowWithoutNone(Bent):
    """Leaves out of the row what is None."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            row = {name: column for name, column in value.row.items() if column is not None}
            return await super().reward(attrs.evolve(value, row=row))


@mutant("workflow/single_turn", killers=("workflow.rows.worth",))
class AbortedIsWorthHalf(Bent):
    """Halves the reward of an output that was aborted."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop_reason is not StopReason.ABORTED:
            return trajectory
        return attrs.evolve(trajectory, reward=trajectory.reward / 2)


@mutant("workflow/single_turn", killers=("workflow.rows.worth",))
class FullBudgetIsWorthLess(Bent):
    """Takes something off the reward of an output exactly as long as the budget allows."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        full = int(trajectory.loss_mask.sum()) == 23
        return attrs.evolve(trajectory, reward=trajectory.reward - 0.1) if full else trajectory
