"""Two roles of one policy, each with a reward of its own: the workflow `self_play`. A template to copy.

A proposer makes a task of what the row asks for; solvers, who see that task alone, try it. A solver's reward is
`rollout.reward` of its answer; the proposer's is highest for tasks that half of the solvers can do: 4 m (1 - m), m
their mean reward. Rewards of different roles are no measure for each other: take the estimator `per_role`.

Knows: who is asked what, and what each role is worth.
Does not know: tokens, or whether an answer is right: the reward function reads the task in the column `task`.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, field, frozen, validators

from areal_agentic.conversation import Conversation
from areal_agents.workflows.talks import TalkConfig, Talks, user
from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.workflow import RewardResult, Session, Tokenizer, require_ok

ROLE = "role"
"""Sequence column: which role a trajectory is of."""
PROPOSER, SOLVER = 0, 1


@frozen(kw_only=True)
class SelfPlayConfig(TalkConfig):
    """Options under `rollout.workflow.options`.

    Example: {question: "Solve this: {task}", tries: 4}
    """

    question: str = "{task}"
    """What a solver is asked; {task} is what the proposer said, columns of the row are filled in too."""
    tries: int = field(default=4, validator=validators.ge(1))
    """Solvers of one task."""


class SelfPlayWorkflow:
    """The policy makes a task and solves it; both roles learn, each from its own reward."""

    def __init__(self, config: SelfPlayConfig | None = None) -> None:
        """Build the renderer. One instance serves every episode."""
        self._config = config or SelfPlayConfig()
        self._talks = Talks(self._config)

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `messages` or `prompt`, which asks for a task. Any: as in the contract.

        Raises:
            DatasetError: the row has neither, or the renderer cannot write it.
            RewardFailed: the reward function raised, hung, died or returned no finite number.
        """
        proposer = self._talks.begin(engine, data)
        proposed = await proposer.ask()
        row = {**data, "task": proposed.content if proposed else ""}
        solvers = [self._talks.about(engine, user(self._config.question, row)) for _ in range(self._config.tries)]
        try:
            async with asyncio.TaskGroup() as scope:
                solving = [scope.create_task(_solved(solver, row)) for solver in solvers]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        results = [task.result() for task in solving]
        solved = [require_ok(result, f"a solver of episode {engine.task_id}") for result in results]
        mean = statistics.fmean(solved)
        trajectories = _of(PROPOSER, proposer.trajectories(4 * mean * (1 - mean)))
        for solver, reward in zip(solvers, solved, strict=True):
            trajectories += _of(SOLVER, solver.trajectories(reward))
        return Episode(
            trajectories=trajectories,
            task_id=engine.task_id,
            group_id=engine.group_id,
            metrics={"self_play/solved": mean, "self_play/proposal": 4 * mean * (1 - mean), **_components(results)},
        )

    def writes(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer."""
        return self._talks.named(tokenizer)

    def prompt_ids(self, tokenizer: Tokenizer, data: Mapping[str, Any], task_id: str) -> Sequence[int]:
        """Return the tokens of the proposer's request. Any: as in the contract."""
        return self._talks.prompt_ids(tokenizer, data, task_id)


async def _solved(solver: Conversation, row: Mapping[str, Any]) -> RewardResult:
    """Return what the reward says of a solver's answer."""
    await solver.ask()
    return await solver.score(row, prompt=str(solver.messages[0]["content"]))


def _components(results: Sequence[RewardResult]) -> dict[str, float]:
    """Return the mean of each component over the answers that have it."""
    names = {name for result in results for name in result.components}
    return {name: statistics.fmean(r.components[name] for r in results if name in r.components) for name in names}


def _of(role: int, made: Iterable[Trajectory]) -> list[Trajectory]:
    """Return trajectories that say which role they are of."""
    return [evolve(each, sequence_extras={**each.sequence_extras, ROLE: torch.tensor(role)}) for each in made]
