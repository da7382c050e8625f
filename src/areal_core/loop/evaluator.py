"""Sets of held-out rows, scored by the run's own workflow and reward while rollouts for training go on.

Knows: how rewards of held-out prompts become numbers.
Does not know: when a version is scored (`train_loop`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_core.contract.inference import SamplingParams
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.groups import episode_reward


@frozen(kw_only=True)
class HeldOut:
    """One set: its rows, and how each is sampled. Any: the data set decides what a row holds."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    samples: int = 1
    pass_reward: float = 1.0

    @property
    def key(self) -> str:
        """Return what its data stands under in the configuration."""
        return f"evaluation.sets.{self.name}.data" if self.name else "evaluation.data"


class Evaluator:
    """Satisfies `areal_core.loop.train_loop.Scores`."""

    def __init__(self, executor: RolloutExecutor, sets: Sequence[HeldOut]) -> None:
        """Score the sets one after another; the one without a name is the run's own."""
        self._executor, self._sets = executor, sets

    async def score(self) -> tuple[Mapping[str, float], int]:
        """Return `reward`, and of a set with a name `reward/NAME` and `pass/NAME`; and how many samples are left out.

        A reward is the mean over prompts of the mean over their samples (avg@k); a prompt passes if the reward of one
        of its samples reaches the set's `pass_reward` (pass@k with k samples, told for more than one).

        Raises:
            RolloutError: too many episodes failed; a failed evaluation is not a low score.
        """
        scores: dict[str, float] = {}
        left_out = 0
        for each in self._sets:
            rows = [row for row in each.rows for _ in range(each.samples)]
            rewards: dict[int, list[float]] = defaultdict(list)
            for episode in await self._executor.evaluate(rows, each.sampling):
                rewards[int(episode.task_id.rpartition("/")[2]) // each.samples].append(episode_reward(episode))
            left_out += len(rows) - sum(map(len, rewards.values()))
            ending = f"/{each.name}" if each.name else ""
            means = [sum(found) / len(found) for found in rewards.values()]
            scores[f"reward{ending}"] = sum(means) / max(1, len(means))
            if each.samples > 1:
                passed = sum(max(found) >= each.pass_reward for found in rewards.values())
                scores[f"pass{ending}"] = passed / max(1, len(rewards))
        return scores, left_out
