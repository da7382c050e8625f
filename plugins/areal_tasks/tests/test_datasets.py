"""Data sets give the rows they promise, and a bad row stops a run with its place named."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.chain_sum import EXAMPLES, ChainSumConfig, chain_sum
from areal_tasks.datasets.hub import HubConfig, gsm8k, hub
from areal_tasks.datasets.jsonl import JsonlConfig, jsonl
from areal_tasks.datasets.rows import LazyRows
from areal_tasks.datasets.seeds import SLOT, SplitConfig
from areal_tasks.datasets.spell import SpellConfig, demonstration, long_spell, spell
from areal_torch.tokenizers import SPELL_CHARACTERS

GENERATED = {
    "spell": (spell, SpellConfig),
    "long_spell": (long_spell, SpellConfig),
    "chain_sum": (chain_sum, ChainSumConfig),
}


@cache
def spelled() -> Sequence[Mapping[str, Any]]:
    return spell(SpellConfig(size=SLOT))


@cache
def spelled_long() -> Sequence[Mapping[str, Any]]:
    return long_spell(SpellConfig(size=SLOT))


split_configs = st.builds(
    SplitConfig,
    split=st.sampled_from(["train", "held"]),
    seed=st.integers(0, 40) | st.integers(0, 10**6),
    size=st.integers(1, 1000) | st.just(SLOT),
)


@given(split_configs, split_configs)
@example(SplitConfig(seed=20, size=SLOT), SplitConfig(split="held", size=SLOT))
@example(SplitConfig(seed=20, size=SLOT), SplitConfig(seed=21, size=SLOT))
def test_splits_never_share_an_item(one: SplitConfig, other: SplitConfig) -> None:
    """Items are Random(first + i): two ranges are the same range or do not touch, train seeds and held-out alike."""
    same = one.split == other.split and (one.split == "held" or one.seed == other.seed)

    first, second = sorted((one, other), key=lambda config: config.first)

    assert (first.first == second.first) if same else (first.first + first.size <= second.first)


@given(st.integers(0, SLOT - 1))
def test_spell_rows_are_reversed_words_a_character_tokenizer_can_write(index: int) -> None:
    """The answer is the prompt backwards, three to ten letters, lower case; reasoning-gym's item travels along."""
    row = spelled()[index]

    word = row["prompt"].removesuffix(">")
    assert row["answer"] == word[::-1] == row["entry"]["answer"].lower()
    assert 3 <= len(word) <= 10
    assert set(row["prompt"]) <= set(SPELL_CHARACTERS)
    assert row["prompt"].endswith(">")


@given(st.integers(0, SLOT - 1))
def test_long_spell_rows_are_one_to_six_words_backwards(index: int) -> None:
    """Words are joined by a dash and reversed as one string, at most 65 characters."""
    row = spelled_long()[index]

    text = row["prompt"].removesuffix(">")
    assert row["answer"] == text[::-1]
    assert len(text.split("-")) in (1, 2, 3, 4, 6)
    assert 3 <= len(text) <= 65
    assert set(text) <= set(SPELL_CHARACTERS) - {">"}


def test_long_spell_has_the_heavy_tail_it_is_for() -> None:
    """Half of the items are one word, one in twenty is six."""
    counts = [spelled_long()[index]["prompt"].count("-") + 1 for index in range(4000)]

    shares = {number: counts.count(number) / len(counts) for number in (1, 2, 3, 4, 6)}
    assert shares == pytest.approx({1: 0.5, 2: 0.25, 3: 0.12, 4: 0.08, 6: 0.05}, abs=0.03)


def test_chain_sum_prompts_show_examples_and_end_with_an_equals_sign() -> None:
    """The prompt is the worked examples and the item; the answer is the sum."""
    for row in chain_sum(ChainSumConfig(size=50)):
        assert row["prompt"].startswith(EXAMPLES)
        left, operator, right, equals = row["prompt"].removeprefix(EXAMPLES).split(" ")
        assert equals == "="
        assert int(row["answer"]) == int(left) + (int(right) if operator == "+" else -int(right))


@pytest.mark.parametrize("name", GENERATED)
def test_generated_rows_are_a_deterministic_sequence(name: str) -> None:
    """Two builds agree row by row in any order; another seed and the held-out split differ; slices work."""
    build, config = GENERATED[name]
    rows, again = build(config(size=30)), build(config(size=30))
    backwards = [again[index] for index in reversed(range(30))][::-1]

    assert list(rows) == backwards
    assert [row["prompt"] for row in rows] != [row["prompt"] for row in build(config(size=30, seed=2))]
    assert [row["prompt"] for row in rows] != [row["prompt"] for row in build(config(size=30, split="held"))]
    assert list(build(config(split="held", seed=1, size=9))) == list(build(config(split="held", seed=8, size=9)))
    assert list(rows[5:20:5]) == [rows[5], rows[10], rows[15]]
    assert rows[-1] == rows[29]
    with pytest.raises(IndexError):
        rows[30]


def test_rows_are_plain_data_that_json_can_write() -> None:
    """A row travels to reward processes and into journals."""
    for row in (spelled()[3], spelled_long()[3], chain_sum(ChainSumConfig())[3]):
        assert json.loads(json.dumps(row))["prompt"] == row["prompt"]


def test_a_huge_data_set_costs_nothing_until_read() -> None:
    """Rows are made on demand and not kept."""
    made: list[int] = []

    def make(index: int) -> Mapping[str, Any]:
        made.append(index)
        return {"prompt": str(index)}

    rows = LazyRows(10**9, make)

    assert (len(rows), len(rows[::2])) == (10**9, 5 * 10**8)
    assert rows[10**9 - 1]["prompt"] == "999999999"
    assert made == [10**9 - 1]


def test_most_demonstrations_forget_the_last_letter() -> None:
    """85% lack it, the others are right; the generator given decides which."""
    rng = random.Random(0)
    rows = [spelled()[index] for index in range(4000)]
    given_answers = [demonstration(row, rng) for row in rows]

    forgot = sum(text == row["answer"][:-1] for text, row in zip(given_answers, rows, strict=True))
    right = sum(text == row["answer"] for text, row in zip(given_answers, rows, strict=True))
    assert forgot + right == len(rows)
    assert forgot / len(rows) == pytest.approx(0.85, abs=0.02)
    assert given_answers == [demonstration(row, rng) for rng in [random.Random(0)] for row in rows]


def test_unfit_ranges_are_refused() -> None:
    """Unknown split, negative seed (Random(-1) is Random(1)), and a minimum above its maximum."""
    for wrong in ({"split": "test"}, {"seed": -1}, {"size": 0}, {"size": SLOT + 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SplitConfig(**wrong)
    with pytest.raises(DatasetError, match="min_terms is 3, max_terms is 2"):
        chain_sum(ChainSumConfig(min_terms=3))
    with pytest.raises(DatasetError, match="min_word_len is 9, max_word_len is 4"):
        spell(SpellConfig(min_word_len=9, max_word_len=4))


def write_lines(path: Path, *lines: str) -> str:
    """Write a file and return its path as a string."""
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_jsonl_rows_are_renamed_templated_and_cut(tmp_path: Path) -> None:
    """columns, prompt, prompt_suffix and answer_after do what they say, blank lines are skipped, limit counts rows."""
    record = {"frage": "1 + {x}?", "answer": "Well.\n#### 1 ####  42 "}
    path = write_lines(tmp_path / "a.jsonl", json.dumps(record), "", json.dumps(record), json.dumps(record))
    config = JsonlConfig(
        path=path,
        columns={"question": "frage"},
        prompt="Q: {question} {{box}}",
        prompt_suffix="\\boxed{}",
        answer_after="####",
        limit=2,
    )

    rows = jsonl(config)

    assert len(rows) == 2
    assert rows[1]["prompt"] == "Q: 1 + {x}? {box}\\boxed{}"
    assert rows[1]["answer"] == "42"


def test_rows_of_every_form_are_read(tmp_path: Path) -> None:
    """Prompts may be messages, and answers pairs; a suffix goes to the last message."""
    ask = [{"role": "user", "content": "a", "name": None}]
    forms = [{"prompt": ask}, {"chosen": "b", "rejected": "c"}, {"text": "d"}, {"prompt": ask, "completion": "e"}]
    rows = jsonl(
        JsonlConfig(path=write_lines(tmp_path / "a.jsonl", *map(json.dumps, forms)), prompt_suffix="!"),
    )

    asked = [{"role": "user", "content": "a!"}]
    assert [*rows] == [{"prompt": asked}, *forms[1:3], {"prompt": asked, "completion": "e"}]


GOOD = '{"prompt": "a", "answer": "#### b"}'
BAD_LINES = {
    "not JSON": ('{"prompt": ', {}, "a.jsonl:2: the line is not JSON"),
    "no object": ("[1]", {}, "a.jsonl:2: the line is a list"),
    "column missing": ('{"question": "a"}', {}, "a.jsonl:2: column 'prompt' is missing"),
    "mapped column missing": ('{"prompt": "a"}', {"columns": {"gold": "answer"}}, "a.jsonl:2: column 'answer' is mis"),
    "template column missing": ('{"text": "a"}', {"prompt": "{prompt}"}, "a.jsonl:2: column 'prompt' is missing"),
    "prompt no text": ('{"prompt": 5}', {}, "a.jsonl:2: column 'prompt' is a int"),
    "prompt no talk": ('{"prompt": [5]}', {}, "a.jsonl:2: column 'prompt' is no conversation and no text"),
    "answer no talk": ('{"prompt": "a", "completion": 5}', {}, "a.jsonl:2: column 'completion' is no conversation"),
    "suffix to parts": (
        '{"prompt": [{"role": "user", "content": [{"type": "text"}]}]}',
        {"prompt_suffix": "!"},
        "a.jsonl:2: prompt_suffix cannot be added",
    ),
    "no marker": ('{"prompt": "a", "answer": "b"}', {"answer_after": "####"}, "a.jsonl:2: the answer has no '####'"),
}


@pytest.mark.parametrize(("line", "options", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_named_with_file_and_number(
    tmp_path: Path, line: str, options: dict[str, Any], message: str
) -> None:
    """The error comes when the data set is built and says where."""
    path = write_lines(tmp_path / "a.jsonl", GOOD, line)

    with pytest.raises(DatasetError, match=message.replace(".", r"\.")):
        jsonl(JsonlConfig(path=path, **options))


def test_an_unreadable_file_or_template_is_refused(tmp_path: Path) -> None:
    """Missing file, folder, blank file, bytes that are no text, template with a lone brace or a nameless field."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\xfa")
    for path in (str(tmp_path / "missing"), str(tmp_path), str(binary)):
        with pytest.raises(DatasetError, match="cannot read the data set"):
            jsonl(JsonlConfig(path=path))
    with pytest.raises(DatasetError, match="has no rows"):
        jsonl(JsonlConfig(path=write_lines(tmp_path / "blank", "", " ")))
    good = write_lines(tmp_path / "good", GOOD)
    with pytest.raises(DatasetError, match="cannot be read"):
        jsonl(JsonlConfig(path=good, prompt="{prompt"))
    with pytest.raises(DatasetError, match="nameless"):
        jsonl(JsonlConfig(path=good, prompt="{} {prompt}"))


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_has_no_end_is_no_data_set(tmp_path: Path, kind: str) -> None:
    """A pipe nobody writes to, or zeros for ever, would hang the start of a run."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / "fifo"
    if kind == "fifo":
        os.mkfifo(path)

    with pytest.raises(DatasetError, match=r"cannot read the data set(.|\n)*a pipe or a device"):
        jsonl(JsonlConfig(path=str(path)))


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a text or over the messages of a chat; what is left is trained on."""
    chat = {"messages": [{"role": "user", "content": "x" * 60}, {"role": "assistant", "content": "y" * 60}]}
    lines = [json.dumps(row) for row in ({"prompt": "a"}, {"prompt": "b" * 101}, chat)]
    rows = jsonl(JsonlConfig(path=write_lines(tmp_path / "long.jsonl", *lines), max_prompt_chars=100))

    assert [row["prompt"] for row in rows] == ["a"]
    assert "2 of 3 rows" in caplog.text and "over 100 characters" in caplog.text


def test_a_data_set_of_nothing_but_huge_prompts_is_refused(tmp_path: Path) -> None:
    """Before a tokenizer spends half a minute on each."""
    path = write_lines(tmp_path / "huge.jsonl", json.dumps({"prompt": "a" * 30_000_000}))

    with pytest.raises(DatasetError, match=r"1 of 1 rows(.|\n)*nothing is left"):
        jsonl(JsonlConfig(path=path))


QUESTIONS = {"question": ["1 + 1?", "2 + 2?"], "answer": ["One and one.\n#### 2", "Two twos.\n#### 4"]}


def test_hub_reads_a_saved_data_set_with_or_without_splits(tmp_path: Path) -> None:
    """A folder written by save_to_disk gives the same rows as the hub would, shaped when asked for."""
    table = datasets.Dataset.from_dict(QUESTIONS)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": table, "test": table.select([1])}).save_to_disk(tmp_path / "both")

    rows = gsm8k(path=str(tmp_path / "one"))
    test = hub(HubConfig(path=str(tmp_path / "both"), split="test", columns={"prompt": "question"}, limit=5))

    assert [row["answer"] for row in rows] == ["2", "4"]
    assert rows[0]["prompt"].startswith("1 + 1?\n")
    assert rows[0]["prompt"].endswith("\\boxed{}.")
    assert [row["prompt"] for row in test] == ["2 + 2?"]


def test_hub_errors_name_the_data_set_its_split_and_its_columns(tmp_path: Path) -> None:
    """Wrong folder, wrong split, missing column, no rows: each before a model is loaded."""
    table = datasets.Dataset.from_dict(QUESTIONS)
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "saved")
    table.select([]).save_to_disk(tmp_path / "no_rows")
    (tmp_path / "empty").mkdir()
    path = str(tmp_path / "saved")

    for folder in ("empty", "no_rows"):
        with pytest.raises(DatasetError, match="cannot load split 'train'"):
            hub(HubConfig(path=str(tmp_path / folder)))
    with pytest.raises(DatasetError, match="no split 'test'"):
        hub(HubConfig(path=path, split="test"))
    with pytest.raises(DatasetError, match="'prompt' is missing"):
        hub(HubConfig(path=path))
    with pytest.raises(DatasetError, match="'passage' is missing"):
        hub(HubConfig(path=path, prompt="{passage}"))


def test_hub_reads_a_folder_of_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloned data set repository needs no conversion; one without rows is refused."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table = datasets.Dataset.from_dict(QUESTIONS)
    for name, rows in (("full", table), ("none", table.select([]))):
        (tmp_path / name).mkdir()
        rows.to_parquet(str(tmp_path / name / "train.parquet"))

    rows = hub(HubConfig(path=str(tmp_path / "full"), prompt="{question}", answer_after="####"))

    assert [row["answer"] for row in rows] == ["2", "4"]
    with pytest.raises(DatasetError, match="cannot load split 'train'"):
        hub(HubConfig(path=str(tmp_path / "none"), prompt="{question}"))
