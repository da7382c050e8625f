"""Rewards by pattern: a regular expression that is found, and tags that stand as they should."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import ArealError, DatasetError
from areal_core.contract.workflow import RewardInput, RewardStatus
from areal_core.plugins.registry import Registry
from areal_local.rewards.pool import make_pool
from areal_tasks.rewards.format import Format, FormatConfig
from areal_tasks.rewards.regex import Match, Regex, RegexConfig


def found(completion: str, row: dict[str, Any] | None = None, stop_reason: str = "stop", **options: Any) -> float:
    """Return what `regex` gives."""
    return Regex(RegexConfig(**options))("p", completion, [1], stop_reason, row or {})


def formatted(completion: str, stop_reason: str = "stop", **options: Any) -> float:
    """Return what `format` gives."""
    return Format(FormatConfig(**options))("p", completion, [1], stop_reason, {})


@pytest.mark.parametrize(
    ("options", "completion", "value"),
    [
        ({"pattern": r"\d+"}, "it is 42.", 1.0),
        ({"pattern": r"\d+"}, "no number", 0.0),
        ({"pattern": r"\d+", "match": Match.FULL}, " 42\n", 1.0),
        ({"pattern": r"\d+", "match": Match.FULL}, "42.", 0.0),
        ({"pattern": r"\d+", "match": Match.FULL, "strip": False}, " 42", 0.0),
        ({"pattern": r"A(.*)b", "flags": ("ignorecase", "dotall")}, "a\nB", 1.0),
        ({"pattern": r"A(.*)b", "flags": ("ignorecase",)}, "a\nB", 0.0),
        ({"pattern": r"\d+", "column": "answer"}, "first 1 then 42", 0.0),
        ({"pattern": r"\d+", "column": "answer", "match": Match.LAST}, "first 1 then 42", 1.0),
        ({"pattern": r"= (\d+)", "column": "answer"}, "x = 42", 1.0),
        ({"pattern": r"= (\d+)", "column": "answer", "group": 0}, "x = 42", 0.0),
        ({"pattern": r"(\w) = (\d+)", "column": "answer", "group": 2}, "x = 42", 1.0),
        ({"pattern": r"x|(y)", "column": "answer"}, "x", 0.0),
        ({"pattern": r"= (.*)", "column": "answer"}, "x =  42 ", 1.0),
    ],
)
def test_a_pattern_is_found_or_says_what_the_row_does(options: dict[str, Any], completion: str, value: float) -> None:
    """A group that took no part in the match is empty, a column of any type is compared as text."""
    assert found(completion, {"answer": 42}, **options) == value


def test_unfinished_completions_match_nothing_unless_told_otherwise() -> None:
    """As for the other rewards; a row without the column is named."""
    assert found("42", stop_reason="length", pattern="42") == 0.0
    assert found("42", stop_reason="length", pattern="42", finished=False) == 1.0
    assert formatted("<think>a</think><answer>b</answer>", "length") == 0.0
    assert formatted("<think>a</think><answer>b</answer>", "length", finished=False) == 1.0
    with pytest.raises(DatasetError, match="no column 'answer'"):
        found("42", pattern="42", column="answer")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("regex", {"pattern": "a(b"}, r"^o: 'pattern' is no .* unterminated subpattern at position 1: 'a\(b'"),
        ("regex", {"pattern": "(a)", "group": 2}, r"^o: 'group' is 2, and 'pattern' has 1"),
        ("regex", {"pattern": "a", "flags": ["loud"]}, r"^o: 'flags' must be in \['ignorecase'"),
        ("regex", {"pattern": "a", "match": "any"}, r"o\.match"),
        ("regex", {}, "o.pattern is missing"),
        ("format", {"tags": ["a", "a"]}, r"^o: 'tags' must differ"),
        ("format", {"tags": ["a b"]}, "^o: 'tags' must match"),
        ("format", {"tags": []}, "^o: Length of 'tags'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_while_planning(name: str, options: Any, says: str) -> None:
    """With their key, and the position in a pattern."""
    with pytest.raises(ArealError, match=says):
        Registry().options("reward", name, options, "o")


def test_a_pattern_that_takes_for_ever_ends_with_its_process() -> None:
    """Its time is bounded by the reward's, and the next completion is scored."""

    async def test() -> tuple[str, float | None]:
        pool = make_pool("regex", {"pattern": "(a+)+b"}, imports=(), workers=1, timeout_s=0.5)
        try:
            await pool.start()
            values = [
                RewardInput(prompt="p", completion=text, completion_ids=[1], stop_reason="stop", row={})
                for text in ("a" * 64, "ab")
            ]
            slow, quick = [await pool.score(value) for value in values]
            return slow.status, quick.value
        finally:
            await pool.close()

    assert asyncio.run(test()) == (RewardStatus.TIMEOUT, 1.0)


@pytest.mark.parametrize(
    ("completion", "options", "value"),
    [
        ("<think>a</think> <answer>b</answer>\n", {}, 1.0),
        ("<think>a</think>so <answer>b</answer>", {}, 0.0),
        ("<think>a</think>so <answer>b</answer>", {"outside": True}, 1.0),
        ("<answer>b</answer><think>a</think>", {}, 0.0),
        ("<answer>b</answer><think>a</think>", {"ordered": False}, 1.0),
        ("<think>a</think><answer> </answer>", {}, 0.0),
        ("<think>a</think><answer> </answer>", {"empty": True}, 1.0),
        ("<think>a<answer>b</answer></think>", {}, 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", {}, 0.0),
        ("a</think><answer>b</answer>", {}, 0.0),
        ("a</think><answer>b</answer>", {"opened": True}, 1.0),
        ("<think>a</think><answer>b</answer>", {"opened": True}, 0.0),
        ("<think>a < b and <i>c</i></think><answer>b</answer>", {}, 1.0),
        ("<sum>1</sum>", {"tags": ("sum",)}, 1.0),
        ("", {}, 0.0),
        ("<think>a</think>", {"share": True}, 0.25),
        ("x<think>a</think><answer>b</answer>", {"share": True}, 0.5),
        ("</think><think><answer>b</answer>", {"share": True}, 0.25),
    ],
)
def test_tags_stand_once_closed_in_order_and_alone(completion: str, options: dict[str, Any], value: float) -> None:
    """Whatever is not as it should be gives nothing, or its share if that is asked for."""
    assert formatted(completion, **options) == value


PIECES = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "x"])
STRICT = re.compile(r" *<think>[ x]*x[ x]*</think> *<answer>[ x]*x[ x]*</answer> *")


@given(st.lists(PIECES, max_size=10))
def test_tags_are_found_as_one_expression_would(pieces: list[str]) -> None:
    """The default is the usual expression, and more than half is given to nothing else."""
    completion = "".join(pieces)
    value = formatted(completion, share=True)

    assert (value == 1.0) == (STRICT.fullmatch(completion) is not None)
    assert value in (0.0, 0.25, 0.5, 1.0)
    assert formatted(completion) == float(value == 1.0)
