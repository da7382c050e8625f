"""A reward function names what it wants: parts of a completion, columns of its row, or lists as in trl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from areal_core.contract.errors import RewardFailed
from areal_core.contract.workflow import RewardInput, RewardStatus
from areal_local.rewards.calling import adapted, arguments, takes_lists
from areal_local.rewards.child import score

VALUE = RewardInput(
    prompt="2 + 2 =",
    completion=" 4",
    completion_ids=[5, 6],
    stop_reason="stop",
    row={"prompt": "2 + 2 =", "answer": "4", "level": 3},
)
TALK = [{"role": "user", "content": "2 + 2"}]


def all_five(prompt: str, completion: str, completion_ids: Any, stop_reason: str, row: Any) -> float:
    return float(row["level"])


def two(completion: str, answer: str) -> float:
    return float(completion.strip() == answer)


def with_default(completion: str, weight: float = 0.5) -> float:
    return weight


def anything(**given: Any) -> float:
    return float(sorted(given) == ["completion", "completion_ids", "prompt", "row", "stop_reason"])


def anything_and_a_column(level: int, **given: Any) -> float:
    return float(level == 3 and given["completion"] == " 4")


def lists(completions: list[str], **columns: Any) -> list[float]:
    return [float(text.strip() == answer) for text, answer in zip(completions, columns["answer"], strict=True)]


def lists_by_name(prompts: list[str], completions: list[str], level: list[int]) -> list[float]:
    return [float(prompt == "2 + 2 =") * each for prompt, each in zip(prompts, level, strict=True)]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (all_five, 3.0),
        (two, 1.0),
        (with_default, 0.5),
        (anything, 1.0),
        (anything_and_a_column, 1.0),
        (lists, 1.0),
        (lists_by_name, 3.0),
        (lambda completion: len(completion), 2.0),
    ],
)
def test_a_function_gets_what_it_names(function: Callable[..., object], value: float) -> None:
    """As `areal` calls it, by columns, or in lists of one."""
    result = score(adapted(function), VALUE)

    assert (result.value, result.status) == (value, RewardStatus.OK), result.detail


def test_a_function_that_takes_everything_is_left_as_it_is() -> None:
    """Nothing stands between it and its caller."""
    assert adapted(all_five) is all_five
    assert adapted(anything) is anything
    assert not takes_lists(all_five) and takes_lists(lists)


def test_the_completion_of_a_conversation_is_messages_where_lists_are_taken() -> None:
    """Functions written for trl read it so; any other gets the text."""
    value = RewardInput(**{**vars_of(VALUE), "row": {"prompt": TALK, "answer": "4"}})

    given = arguments(lists, value)
    assert given["completions"] == [[{"role": "assistant", "content": " 4"}]]
    assert given["prompts"] == [TALK]
    assert set(given) == {"prompts", "completions", "completion_ids", "answer"}
    assert arguments(two, value) == {"completion": " 4", "answer": "4"}


def test_a_parameter_that_nothing_is_there_for_is_named() -> None:
    """With what there is."""

    def wants_gold(completion: str, gold: str) -> float:
        return 0.0

    with pytest.raises(RewardFailed, match="needs 'gold'") as caught:
        arguments(wants_gold, VALUE)
    assert "answer" in caught.value.why
    result = score(adapted(wants_gold), VALUE)
    assert result.status == RewardStatus.RAISED and "'gold'" in result.detail


@pytest.mark.parametrize("returned", [0.5, [], [1.0, 2.0], None, "1", {"value": 1.0}])
def test_a_function_of_lists_that_returns_something_else_is_told(returned: object) -> None:
    """Never the first of several, never a guess."""

    def answers(completions: list[str]) -> object:
        return returned

    result = score(adapted(answers), VALUE)
    assert result.status == RewardStatus.RAISED and "no list of one number" in result.detail


def vars_of(value: RewardInput) -> dict[str, Any]:
    return {name: getattr(value, name) for name in ("prompt", "completion", "completion_ids", "stop_reason", "row")}
