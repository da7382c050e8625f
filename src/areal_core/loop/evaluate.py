"""Greedy evaluation of the served policy on held-out prompts.

Knows: which prompts, which sampling, and how rewards become one number.
Does not know: when to evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from areal_core.contract.inference import SamplingParams
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.groups import episode_reward


class Evaluator:
    """A fixed set of held-out rows, scored by the run's own workflow and reward."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], sampling: SamplingParams, temperature: float) -> None:
        self._rows = rows
        self._sampling = attrs.evolve(sampling, temperature=temperature)

    async def score(self, executor: RolloutExecutor) -> float:
        """Return the mean reward over all rows; rollouts for training go on meanwhile.

        Raises:
            RolloutError: an episode failed; a failed evaluation is not a low score.
        """
        episodes = await executor.evaluate(self._rows, self._sampling)
        return sum(map(episode_reward, episodes)) / max(1, len(episodes))
