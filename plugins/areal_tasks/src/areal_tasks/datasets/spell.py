"""Spelling backwards, a task a tiny model learns in seconds: "stone>" -> "enots", then the end token.

Knows: reasoning-gym's words, prompts over a character tokenizer, and demonstrations with a flaw.
Does not know: how completions are scored (`areal_tasks.rewards.gym`, with reasoning-gym's own scorer).

`spell` asks for one word (task `spell_backward`). `long_spell` joins one to six words with "-", so that
the length of answers is heavy-tailed: 3 to 65 characters. Same words, same scorer.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.rows import LazyRows, Row
from areal_tasks.datasets.seeds import SplitConfig

FORGETFUL_SHARE = 0.85
"""How many demonstrations of `demonstration` forget the last letter."""

WORD_COUNTS = (1, 2, 3, 4, 6)
WORD_COUNT_WEIGHTS = (50, 25, 12, 8, 5)


@frozen(kw_only=True)
class SpellConfig(SplitConfig):
    """Options of `spell` and `long_spell`.

    Example: SpellConfig(split="held", size=256)
    """

    min_word_len: int = field(default=3, validator=[validators.ge(1), validators.le(10)])
    """Letters of a word at least."""
    max_word_len: int = field(default=10, validator=[validators.ge(3), validators.le(10)])
    """Letters of a word at most."""


def spell(config: SpellConfig) -> LazyRows:
    """Return rows {"prompt": "stone>", "answer": "enots", "entry": reasoning-gym's item}."""
    items = _spell_backward(config)
    return LazyRows(config.size, lambda index: _row(items[index]))


def long_spell(config: SpellConfig) -> LazyRows:
    """Return rows like those of `spell` over several words: {"prompt": "stone-sun>", "answer": "nus-enots", ...}."""
    words: list[str] = _spell_backward(config).words

    def make(index: int) -> Row:
        rng = random.Random(config.first + index)
        (count,) = rng.choices(WORD_COUNTS, WORD_COUNT_WEIGHTS)
        text = "-".join(rng.choice(words) for _ in range(count))
        metadata = {"source_dataset": "spell_backward", "source_index": index, "word": text, "word_len": len(text)}
        question = f"Spell this word backward (example: sun -> nus): {text}"
        return _row({"question": question, "answer": text[::-1], "metadata": metadata})

    return LazyRows(config.size, make)


def demonstration(row: Row, rng: random.Random) -> str:
    """Return what a sloppy annotator writes: 85% of the answers lack their last letter.

    For the warm start by supervised fine-tuning: a model that copies this is right about one time in six
    and never by greedy decoding, so what reinforcement learning adds is plain to see.
    """
    answer: str = row["answer"]
    return answer[:-1] if rng.random() < FORGETFUL_SHARE else answer


def _spell_backward(config: SpellConfig) -> Any:  # Any: reasoning-gym is not typed here
    from reasoning_gym.algorithmic.spell_backward import SpellBackwardConfig, SpellBackwardDataset

    if config.min_word_len > config.max_word_len:
        raise DatasetError(
            f"min_word_len is {config.min_word_len}, max_word_len is {config.max_word_len}",
            why="the minimum exceeds the maximum",
        )
    return SpellBackwardDataset(
        SpellBackwardConfig(
            seed=config.first,
            size=config.size,
            min_word_len=config.min_word_len,
            max_word_len=config.max_word_len,
        )
    )


def _row(entry: dict[str, Any]) -> Row:  # Any: reasoning-gym decides what an entry holds
    return {"prompt": entry["metadata"]["word"].lower() + ">", "answer": entry["answer"].lower(), "entry": entry}
