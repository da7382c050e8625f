"""Sets of held-out rows become means over prompts, and shares of prompts that pass with one of several answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.data import Episode
from areal_core.contract.inference import SamplingParams
from areal_core.loop.evaluator import Evaluator, HeldOut
from areal_core.rollout.executor import RolloutExecutor
from areal_torch.testing.batches import make_episode, make_trajectory

HALVES = [None, 0.0, 0.5, 1.0]


class Answers:
    """Answers rows with the rewards they bring, one after another; None leaves a sample out."""

    def __init__(self) -> None:
        self.asked: list[SamplingParams] = []

    async def evaluate(self, rows: Sequence[Mapping[str, Any]], sampling: SamplingParams) -> list[Episode]:
        self.asked.append(sampling)
        seen: dict[int, int] = {}
        found = []
        for index, row in enumerate(rows):
            turn = seen[id(row)] = seen.get(id(row), -1) + 1
            if (reward := row["rewards"][turn]) is not None:
                found.append(make_episode(make_trajectory(1, 2, reward=reward), task=f"eval/{index}"))
        return found


def scored(*sets: HeldOut) -> tuple[Mapping[str, float], int]:
    return asyncio.run(Evaluator(cast("RolloutExecutor", Answers()), sets).score())


@given(rewards=st.lists(st.lists(st.sampled_from(HALVES), min_size=3, max_size=3), min_size=1, max_size=6))
def test_means_are_over_prompts_and_a_prompt_passes_with_its_best_answer(rewards: list[list[float | None]]) -> None:
    """Against counting by hand; samples that are left out are told, and a prompt without any counts for nothing."""
    rows = [{"rewards": each} for each in rewards]
    scores, left_out = scored(HeldOut(name="math", rows=rows, sampling=SamplingParams(), samples=3, pass_reward=0.5))

    kept = [[Fraction(reward) for reward in each if reward is not None] for each in rewards]
    answered = [each for each in kept if each]
    assert left_out == sum(reward is None for each in rewards for reward in each)
    assert set(scores) == {"reward/math", "pass/math"}
    if answered:
        means = [sum(each) / len(each) for each in answered]
        assert scores["reward/math"] == pytest.approx(float(sum(means) / len(means)))
        assert scores["pass/math"] == pytest.approx(
            sum(max(each) >= Fraction(1, 2) for each in answered) / len(answered)
        )


def test_a_prompt_all_of_whose_answers_are_left_out_is_no_prompt_with_a_reward_of_0() -> None:
    rows = [{"rewards": [None, None]}, {"rewards": [1.0, None]}]

    scores, left_out = scored(HeldOut(name="", rows=rows, sampling=SamplingParams(), samples=2))

    assert (scores, left_out) == ({"reward": 1.0, "pass": 1.0}, 3)


def test_the_runs_own_set_is_the_reward_and_each_set_is_sampled_in_its_way() -> None:
    answers = Answers()
    greedy, warm = SamplingParams(temperature=0.0), SamplingParams(temperature=0.6)
    sets = [
        HeldOut(name="", rows=[{"rewards": [1.0]}, {"rewards": [0.0]}], sampling=greedy),
        HeldOut(name="hard", rows=[{"rewards": [0.0, 1.0]}], sampling=warm, samples=2),
    ]

    scores, left_out = asyncio.run(Evaluator(cast("RolloutExecutor", answers), sets).score())

    assert scores == {"reward": 0.5, "reward/hard": 0.5, "pass/hard": 1.0}
    assert left_out == 0 and answers.asked == [greedy, warm]
