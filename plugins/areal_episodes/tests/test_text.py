"""Rows of a data set are kept as JSON that any reader takes; turns are texts, each made once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, VersionSpan
from areal_core.contract.trajectory import from_generation
from areal_episodes.text import row_as_json, turns

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_row_is_kept_as_json_whatever_numbers_it_holds(value: Any) -> None:
    """A data set may hold NaN; a browser's JSON has no word for it, and the page of the episode must open."""
    kept = json.loads(row_as_json({"answer": value}), parse_constant=lambda word: pytest.fail(word))

    assert kept.keys() == {"answer"}


class Counting:
    """A tokenizer that remembers what it decoded."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the ids as text."""
        self.asked.append(list(token_ids))
        return " ".join(map(str, token_ids))


def test_members_of_a_group_have_the_text_of_their_prompt_made_once() -> None:
    """And so have answers that are alike: each episode's turns are its own all the same."""
    tokenizer = Counting()
    trajectories = [
        from_generation(
            prompt,
            Generation(
                output_ids=answer,
                logprobs=[-0.5] * len(answer),
                version_spans=[VersionSpan(start=0, stop=len(answer), version=0)],
                stop_reason=StopReason.STOP,
            ),
            1.0,
        )
        for prompt, answer in (((4, 5), (6,)), ((4, 5), (7, 8)), ((4,), (6,)))
    ]

    found = turns(trajectories, tokenizer)  # type: ignore[arg-type]  # nothing else is asked of it

    assert [[(turn["role"], turn["text"]) for turn in each] for each in found] == [
        [("given", "4 5"), ("generated", "6")],
        [("given", "4 5"), ("generated", "7 8")],
        [("given", "4"), ("generated", "6")],
    ]
    assert sorted(tokenizer.asked) == [[4], [4, 5], [6], [7, 8]]
