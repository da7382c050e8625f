"""A composed reward is the weighted sum of its parts, each seen by name; what is wrong with one names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_core.contract.errors import ArealError, BackendNotFound, ConfigError, RewardFailed
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.plugins.registry import Registry
from areal_local.rewards.child import Resolved, RewardTarget, resolve

OWN = """
from attrs import frozen
from areal_core import reward

@reward("right")
def right(completion, answer):
    return float(completion.strip() == answer)

@reward("moody")
def moody(completion):
    if completion == "raise":
        raise KeyError("mood")
    return {"value": float("nan") if completion == "nan" else len(completion), "words": len(completion.split())}

@reward("together")
def together(completions, batch_size=4, batch_wait_s=0.25):
    return [{"value": len(text), "asked": len(completions)} for text in completions]

@frozen
class Nothing: ...

@reward("none", config=Nothing)
def none(config):
    return 5
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "rewards.py"
    path.write_text(OWN)
    return str(path)


def value(completion: str, **row: Any) -> RewardInput:
    return RewardInput(
        prompt="p", completion=completion, completion_ids=(4, 5), stop_reason="stop", row={"answer": "4", **row}
    )


def resolved(own: str, parts: dict[str, Any], **options: Any) -> Resolved:
    """Return a composed reward as a reward process makes it."""
    return resolve(RewardTarget(name="composed", options={"parts": parts, **options}, imports=(own,)))


def scored(own: str, parts: dict[str, Any], completions: Sequence[str], **options: Any) -> list[RewardResult]:
    made = resolved(own, parts, **options)
    assert made.scorer is not None, made.error
    return made.scorer([value(completion) for completion in completions])


FORM = {"name": "regex", "weight": 0.25, "options": {"pattern": r"\d", "match": "full"}}


def test_the_value_is_the_weighted_sum_and_every_part_a_component(own: str) -> None:
    """Without its weight; components of a part are named after both."""
    parts = {"correct": {"name": "right"}, "form": FORM, "mood": {"name": "moody", "weight": -0.5}}

    (right, wrong) = scored(own, parts, ["4", "3 4"])

    assert (right.status, right.value) == (RewardStatus.OK, 1.0 + 0.25 - 0.5)
    assert right.components == {"correct": 1.0, "form": 1.0, "mood": 1.0, "mood/words": 1.0}
    assert (wrong.value, wrong.components["mood/words"]) == (-1.5, 2.0)


@settings(max_examples=12)
@given(st.lists(st.tuples(st.floats(-8, 8, width=16), st.sampled_from(["", "4", "abc"])), min_size=1, max_size=4))
def test_any_sum_is_the_sum_of_any_parts(own: str, weighted: list[tuple[float, str]]) -> None:
    """For any weights, parts and completions, also where it is composed of composed rewards."""
    parts = {f"p{n}": {"name": "moody", "weight": weight} for n, (weight, _) in enumerate(weighted)}
    nested = {"inner": {"name": "composed", "options": {"parts": parts}}}
    completions = [completion for _, completion in weighted]

    for completion, flat, deep in zip(
        completions, scored(own, parts, completions), scored(own, nested, completions), strict=True
    ):
        assert flat.value == pytest.approx(sum(weight * len(completion) for weight, _ in weighted))
        assert deep.value == flat.value and deep.components["inner/p0/words"] == len(completion.split())


@pytest.mark.parametrize(
    ("completion", "status", "says"),
    [("raise", RewardStatus.RAISED, "KeyError: 'mood'"), ("nan", RewardStatus.INVALID, "not a finite number")],
)
def test_a_part_that_fails_fails_the_whole_and_is_named(own: str, completion: str, status: str, says: str) -> None:
    """It is no zero, and the others are not spoiled."""
    parts = {"correct": {"name": "right"}, "mood": {"name": "moody"}}

    before, failed, after = scored(own, parts, ["4", completion, "x"])

    assert (failed.status, failed.value, failed.components) == (status, None, {})
    assert failed.detail.startswith("part 'mood' (moody): ") and says in failed.detail
    assert (before.value, after.value) == (2.0, 1.0)


def test_a_part_that_failed_stays_failed_whatever_the_next_one_gives(own: str) -> None:
    parts = {"mood": {"name": "moody"}, "correct": {"name": "right"}}

    (failed,) = scored(own, parts, ["raise"])

    assert (failed.status, failed.value, failed.components) == (RewardStatus.RAISED, None, {})


def test_a_part_that_must_pass_ends_it(own: str) -> None:
    """The parts after it are not asked, so one that would raise does not."""
    parts = {"form": {**FORM, "at_least": 1.0}, "mood": {"name": "moody"}}

    passed, ended = scored(own, parts, ["4", "raise"], otherwise=-1.0)

    assert (passed.value, passed.components) == (1.25, {"form": 1.0, "mood": 1.0, "mood/words": 1.0})
    assert (ended.status, ended.value, ended.components) == (RewardStatus.OK, -1.0, {"form": 0.0})


def test_it_is_asked_about_as_many_as_the_part_that_takes_most(own: str) -> None:
    """The part gets those that the parts before it have let through, together."""
    parts = {"form": {**FORM, "at_least": 1.0}, "scores": {"name": "together"}}
    made = resolved(own, parts)
    assert made.scorer is not None

    results = made.scorer([value(text) for text in ("1", "no", "2", "3")])

    assert (made.scorer.batching.size, made.scorer.batching.wait_s) == (4, 0.25)
    assert [result.components.get("scores/asked") for result in results] == [3.0, None, 3.0, 3.0]


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ({"a": {"name": "exact_match", "options": {"colum": "x"}}}, ArealError, r"'o\.parts\.a\.options\.colum'"),
        ({"a": {"name": "exact_match", "wieght": 2.0}}, ArealError, r"'o\.parts\.a\.wieght'"),
        ({"a": {"weight": 2.0}}, ArealError, r"o\.parts\.a\.name is missing"),
        ({"a": {"name": "exact_match", "weight": float("inf")}}, ArealError, r"o\.parts\.a: 'weight'"),
        ({"a": {"name": "regex", "options": {"pattern": "("}}}, ArealError, r"o\.parts\.a\.options: 'pattern' is no"),
        ({"a": {"name": "exactmatch"}}, BackendNotFound, "exact_match"),
        ({"a b": {"name": "exact_match"}}, ConfigError, "'a b' is no name of a part"),
        ({}, ArealError, "parts"),
        (
            {"a": {"name": "composed", "options": {"parts": {"b": {"name": "format", "options": {"tag": 1}}}}}},
            ArealError,
            r"'o\.parts\.a\.options\.parts\.b\.options\.tag'",
        ),
    ],
)
def test_a_part_that_cannot_be_is_refused_while_planning(parts: Any, error: type[ArealError], says: str) -> None:
    """With the dotted key of what is wrong, however deep it stands."""
    with pytest.raises(error, match=says.replace(r"o\.", r"rollout\.reward\.options\.")):
        Registry().options("reward", "composed", {"parts": parts}, "rollout.reward.options")


def test_a_part_that_cannot_be_called_is_told_before_training(own: str) -> None:
    """As a reward of its own would be."""
    made = resolved(own, {"a": {"name": "none"}})

    assert made.error is not None and made.error[0] == RewardFailed.__name__
    assert "reward 'none' of rollout.reward.options.parts.a cannot be called" in made.error[1]
