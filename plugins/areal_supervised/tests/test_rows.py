"""Rows become sequences; batches have every row once an epoch, also across a resume; what is too long is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from areal_core.contract.errors import DatasetError
from areal_core.rollout.tasks import TaskSource
from areal_supervised.batches import RowBatches
from areal_supervised.config import SupervisedConfig
from areal_supervised.rows import Encoder, answers, judged_pairs, named, pairs
from areal_tasks.tiny import make_spell_model

ROWS = [{"prompt": f"{word}>", "completion": word[::-1]} for word in ("abc", "bcd", "cde", "def", "efg")]
PAIR = {"prompt": "abc>", "chosen": "cba", "rejected": "ab"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(make_spell_model(Path(tmp_path_factory.mktemp("model")) / "m", 1))


def encoder(tokenizer: Any, encode: Any = answers, longest: int = 64) -> Encoder:
    return Encoder(encode, tokenizer, SupervisedConfig(), longest)


def batches(tokenizer: Any, told: list[dict[str, Any]] | None = None, longest: int = 64, size: int = 2) -> RowBatches:
    def tell(_kind: str, **fields: Any) -> None:
        assert told is not None, fields
        told.append(fields)

    source = TaskSource(ROWS, seed=3)
    return RowBatches(source, encoder(tokenizer, longest=longest), size, version=0, tell=tell)


def read(found: RowBatches, count: int) -> list[str]:
    return [str(group.task.task_id) for _ in range(count) for group in asyncio.run(found.next_batch())]


def test_an_answer_is_learned_with_its_end_and_its_prompt_is_not(tokenizer: Any) -> None:
    made = encoder(tokenizer).episode(named(0, ROWS[0]))

    assert made is not None
    (sequence,) = made.trajectories
    learned = sequence.input_ids[sequence.loss_mask].tolist()
    assert tokenizer.decode(learned[:-1]) == "cba" and learned[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(sequence.input_ids[~sequence.loss_mask]) == "abc>"


def test_a_reward_is_read_after_the_whole_answer(tokenizer: Any) -> None:
    """The one marked token comes after the end token: an engine's value of it is of all before it."""
    made, plain = (encoder(tokenizer, encode).episode(named(0, PAIR)) for encode in (judged_pairs, pairs))

    assert made is not None and plain is not None
    for judged, answer in zip(made.trajectories, plain.trajectories, strict=True):
        assert judged.input_ids[:-1].tolist() == answer.input_ids.tolist()
        assert judged.loss_mask.nonzero().flatten().tolist() == [len(answer.input_ids)]
        assert answer.input_ids[-1] == tokenizer.eos_token_id


def test_every_row_comes_once_an_epoch_and_in_the_same_places_after_a_resume(tokenizer: Any) -> None:
    whole = read(batches(tokenizer), 5)
    before = batches(tokenizer)
    begun = read(before, 2)
    after = batches(tokenizer)
    after._source.restore(before.state()["tasks"])

    assert begun + read(after, 3) == whole
    assert sorted(whole[:5]) == [f"train/0/{row}" for row in range(5)]
    assert sorted(whole[5:]) == [f"train/1/{row}" for row in range(5)]


def test_rows_that_are_too_long_are_left_out_and_told_once(tokenizer: Any) -> None:
    told: list[dict[str, Any]] = []
    long = {"prompt": "abcdefgh>", "completion": "hgfedcba"}
    source = TaskSource([*ROWS, long, long], seed=3)
    found = RowBatches(source, encoder(tokenizer, longest=12), 5, version=0, tell=lambda _kind, **f: told.append(f))

    names = read(found, 2)

    assert {name.rpartition("/")[2] for name in names} == {"0", "1", "2", "3", "4"}
    assert found.left_out >= 2 and found.stats().rejected == found.left_out
    assert [each["name"] for each in told] == ["rows_too_long"]


def test_data_of_which_every_row_is_too_long_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DatasetError, match="are too long"):
        read(batches(tokenizer, [], longest=3), 1)


@pytest.mark.parametrize("row", [{"prompt": "abc>", "completion": ""}, {"input_ids": [1, 2], "loss_mask": [1, 0]}])
def test_a_row_without_a_token_to_learn_is_named(tokenizer: Any, row: dict[str, Any]) -> None:
    """An empty answer still has its end token to learn; ids whose mask marks the first alone have nothing."""
    if "prompt" in row:
        made = encoder(tokenizer).episode(named(4, row))
        assert made is not None and int(made.trajectories[0].loss_mask.sum()) == 1
        return
    with pytest.raises(DatasetError, match="row 4 has no token to learn"):
        encoder(tokenizer).episode(named(4, row))
