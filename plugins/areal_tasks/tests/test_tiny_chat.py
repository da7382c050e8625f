"""The chat model of the offline tasks: its tokens are exact, and its demonstrations are what a run will ask for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_tasks.quickstart.demonstrations import CALLING_SHARE, show
from areal_tasks.quickstart.quickstart import PRESETS, preset_path
from areal_tasks.quickstart.warm_start import CHATS, RECIPES
from areal_tasks.tiny_chat import CALCULATOR, MAX_POSITION, WORDS, chat_tokenizer, make_chat_model

TOKENIZER = chat_tokenizer()


@given(st.text() | st.lists(st.sampled_from([*WORDS, "<|im_end|>", '{"name": "', "a", "\n"])).map("".join))
def test_any_text_survives_its_tokens(text: str) -> None:
    """Characters outside the vocabulary are their bytes."""
    ids = TOKENIZER.encode(text, add_special_tokens=False)

    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.unk_token_id is None


def test_a_conversation_with_a_tool_is_short() -> None:
    """What every prompt says again is a few tokens, so that an episode takes no time."""
    messages = [{"role": "user", "content": "123 + 456 + 789 ="}]
    ids = TOKENIZER.apply_chat_template(messages, tools=[CALCULATOR], add_generation_prompt=True)["input_ids"]

    assert len(ids) < 70


@pytest.mark.parametrize("task", CHATS)
def test_what_is_demonstrated_is_asked_as_a_run_asks(task: str) -> None:
    """Prompts end where an answer begins, answers end with the end token, and nothing is longer than the model."""
    made: Any = show(task, 1, TOKENIZER)
    rng = random.Random(1)
    shown = [each for index in range(40) for each in made(index, rng)]

    for each in shown:
        assert TOKENIZER.decode(each.prompt_ids).endswith(("<|im_start|>assistant\n", WORDS[0]))
        assert each.answer_ids[-1] == TOKENIZER.eos_token_id and TOKENIZER.eos_token_id not in each.answer_ids[:-1]
        assert len(each.prompt_ids) + len(each.answer_ids) < MAX_POSITION
    assert len(shown) > 40, "some rows are shown with a second turn"


def test_sums_are_mostly_estimated() -> None:
    """The share of calls is small enough that a greedy answer makes none."""
    made: Any = show("sums", 1, TOKENIZER)
    rng = random.Random(1)
    first = [TOKENIZER.decode(made(index, rng)[0].answer_ids) for index in range(400)]
    calls = [text for text in first if text.startswith("<tool_call>\n")]

    assert abs(len(calls) / 400 - CALLING_SHARE) < 0.05
    assert all(text.startswith("about ") for text in first if text not in calls)


def test_a_row_is_shown_the_same_way_again() -> None:
    """For a seed."""
    again = [show(task, 1, TOKENIZER)(7, random.Random(3)) for task in CHATS]

    assert again == [show(task, 1, TOKENIZER)(7, random.Random(3)) for task in CHATS]


def test_every_task_has_a_recipe_and_a_run_file(tmp_path: Path) -> None:
    """And the model has a place for every token."""
    from transformers import AutoConfig, AutoTokenizer

    folder = make_chat_model(tmp_path, 1)

    assert set(RECIPES) <= set(PRESETS)
    assert all(preset_path(name).is_file() for name in PRESETS)
    assert AutoConfig.from_pretrained(folder).vocab_size == len(AutoTokenizer.from_pretrained(folder))
