"""Reward functions score what they say, refuse unfinished work, and name what a row lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.data import StopReason
from areal_core.contract.errors import DatasetError
from areal_tasks import manifest
from areal_tasks.datasets.chain_sum import ChainSumConfig, chain_sum
from areal_tasks.datasets.spell import SpellConfig, long_spell, spell
from areal_tasks.rewards.exact import ExactMatch, ExactMatchConfig
from areal_tasks.rewards.gym import ReasoningGym, ReasoningGymConfig
from areal_tasks.rewards.mathematics import MathVerify, MathVerifyConfig


@cache
def spelled() -> Sequence[Mapping[str, Any]]:
    return spell(SpellConfig())


@cache
def spelled_long() -> Sequence[Mapping[str, Any]]:
    return long_spell(SpellConfig())


GYM = ReasoningGym(ReasoningGymConfig())
EXACT_GYM = ReasoningGym(ReasoningGymConfig(exact=True))


def score(
    function: Callable[..., float], completion: str, row: Mapping[str, Any], stop_reason: str = StopReason.STOP
) -> float:
    """Call a reward function as the reward pool does, by keyword."""
    return function(
        prompt=row.get("prompt", ""), completion=completion, completion_ids=[5, 1], stop_reason=stop_reason, row=row
    )


@given(st.integers(0, 10_000))
def test_the_right_answer_scores_one_under_every_spelling_reward(index: int) -> None:
    """reasoning-gym's own scorer agrees with our rows' answers, one word or several."""
    for row in (spelled()[index], spelled_long()[index]):
        for function in (GYM, EXACT_GYM, ExactMatch()):
            assert score(function, row["answer"], row) == 1.0


def test_part_of_the_answer_scores_part_unless_exact() -> None:
    """spell_backward gives a share to each right letter; `exact` is all or nothing."""
    row = spelled()[0]
    partial = row["answer"][:-1]

    assert 0.5 < score(GYM, partial, row) < 1.0
    assert score(EXACT_GYM, partial, row) == 0.0
    assert score(GYM, row["answer"].upper(), row) == 1.0, "the scorer ignores case"
    assert score(EXACT_GYM, row["answer"].upper(), row) == 0.0
    assert score(EXACT_GYM, "wrong", {**row, "answer": "wrong"}) == 0.0, "the scorer has the last word"


@pytest.mark.parametrize("stop_reason", [StopReason.LENGTH, StopReason.ABORTED])
def test_unfinished_completions_score_nothing_unless_told_otherwise(stop_reason: StopReason) -> None:
    """A right answer without its end token is not finished."""
    word, number = spelled()[0], {"answer": "42"}
    lenient = (
        (ReasoningGym(ReasoningGymConfig(finished=False)), word),
        (ExactMatch(ExactMatchConfig(finished=False)), word),
        (MathVerify(), number),
    )
    strict = (
        (GYM, word),
        (EXACT_GYM, word),
        (ExactMatch(), word),
        (MathVerify(MathVerifyConfig(finished=True)), number),
    )

    assert [score(function, row["answer"], row, stop_reason) for function, row in lenient] == [1.0] * 3
    assert [score(function, row["answer"], row, stop_reason) for function, row in strict] == [0.0] * 4


def test_sums_are_scored_by_value_and_by_spelling() -> None:
    """chain_sum's scorer takes other spellings of the number, exact does not; white space is stripped."""
    rows = chain_sum(ChainSumConfig(size=100))
    row = next(row for row in rows if int(row["answer"]) > 0)

    assert score(GYM, f" {row['answer']}", row) == 1.0
    assert score(GYM, f"{row['answer']}.0", row) == 1.0
    assert score(EXACT_GYM, f" {row['answer']}\n", row) == 1.0
    assert score(EXACT_GYM, f"{row['answer']}.0", row) == 0.0
    assert score(EXACT_GYM, f"{int(row['answer']) + 1}", row) == 0.0


def test_exact_match_strips_and_folds_case_as_configured() -> None:
    """The defaults strip and keep case; a column of any type is compared as text."""
    row = {"answer": "Yes", "number": 7}

    assert score(ExactMatch(), " Yes\n", row) == 1.0
    assert score(ExactMatch(), "yes", row) == 0.0
    assert score(ExactMatch(ExactMatchConfig(case=False)), "yEs", row) == 1.0
    assert score(ExactMatch(ExactMatchConfig(strip=False)), " Yes", row) == 0.0
    assert score(ExactMatch(ExactMatchConfig(column="number")), "7", row) == 1.0


MATHEMATICS = [
    ("72", "so the answer is \\boxed{72}", 1.0),
    ("72", "\\boxed{72.0}", 1.0),
    ("1,000", "It is 1000.", 1.0),
    ("\\frac{1}{2}", "\\boxed{0.5}", 1.0),
    ("$x^2 + 2x + 1$", "\\boxed{(x+1)^2}", 1.0),
    ("-3", "\\boxed{3}", 0.0),
    ("1 < x < 2", "It is $(1, 2)$", 1.0),
    ("(1, 2)", "It is $1 < x < 2$", 0.0),
    ("72", "I do not know", 0.0),
    ("72", "", 0.0),
    ("72", "\\boxed{72", 0.0),
]


@pytest.mark.parametrize(("answer", "completion", "expected"), MATHEMATICS)
def test_mathematics_is_compared_by_value(answer: str, completion: str, expected: float) -> None:
    """Fractions, thousands and polynomials are equal as mathematics; nonsense is a plain zero."""
    assert score(MathVerify(), completion, {"answer": answer}) == expected


def test_a_row_without_the_column_is_named() -> None:
    """A missing column is an error that names it, never a score of zero."""
    with pytest.raises(DatasetError, match="no column 'entry'"):
        score(GYM, "x", {"answer": "x"})
    with pytest.raises(DatasetError, match="no column 'answer'"):
        score(ExactMatch(), "x", {"prompt": "x"})
    with pytest.raises(DatasetError, match="no column 'answer'"):
        score(MathVerify(), "x", {"prompt": "x"})
    with pytest.raises(DatasetError, match="no data set 'nonsense'"):
        score(GYM, "x", {"entry": {"metadata": {"source_dataset": "nonsense"}}})


def test_the_manifests_name_what_exists_and_import_nothing_heavy() -> None:
    """Describing and configuring every data set and reward loads no torch, transformers or reasoning-gym."""
    code = """
import sys
from importlib import import_module
from areal_tasks import manifest
from areal_core.plugins.manifest import Manifest
found = [value for value in vars(manifest).values() if isinstance(value, Manifest)]
light = [one for one in found if one.role != "workflow"]
for one in light:
    for target in (one.factory, one.config):
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name)), target
heavy = {"torch", "transformers", "reasoning_gym", "datasets", "math_verify", "numpy"} & set(sys.modules)
assert not heavy, heavy
print(len(light))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8
    assert (manifest.SPELL.name, manifest.EXACT_MATCH.role) == ("spell", "reward")
