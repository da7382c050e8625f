"""A reward model scores several answers in one forward pass, each as it would alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from areal_core.contract.workflow import RewardInput
from areal_supervised.scored import Scored, ScoredConfig
from areal_tasks.tiny import make_spell_model

ANSWERS = ("a", "abcdef", "fed", "", "bb", "a")


def value(completion: str) -> RewardInput:
    row = {"prompt": f"{completion[::-1]}>"}
    return RewardInput(prompt="", completion=completion, completion_ids=(), stop_reason="stop", row=row)


def reward_model(folder: Path, head: str, pad: int | None) -> Path:
    """Make a reward model of random weights, in which every token counts."""
    make_spell_model(folder, 1)
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=1)
    config.pad_token_id = pad
    torch.manual_seed(1)
    getattr(transformers, head).from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("head", "pad"),
    [
        ("AutoModelForTokenClassification", None),
        ("AutoModelForTokenClassification", 0),
        ("AutoModelForSequenceClassification", 0),
        ("AutoModelForSequenceClassification", None),
    ],
)
def test_several_answers_are_scored_as_each_alone(tmp_path: Path, head: str, pad: int | None) -> None:
    """Of any length, in any order, whether the model names a padding token or not."""
    scored = Scored(ScoredConfig(path=str(reward_model(tmp_path / "m", head, pad)), batch_size=8))
    values = [value(answer) for answer in ANSWERS]

    together = scored(values)
    alone = [score for one in values for score in scored([one])]

    assert together == pytest.approx(alone, abs=1e-6)
    assert len({round(score, 4) for score in together}) == len(set(ANSWERS)), "the answers differ"
