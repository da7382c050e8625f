"""Data that is not what it should be is refused in our words, soon, before a model loads; what is read can be used."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest

from areal_core.contract.errors import ArealError, DatasetError
from areal_tasks.datasets.hub import HubConfig, hub
from areal_tasks.datasets.jsonl import JsonlConfig, jsonl
from areal_torch.testing.hostile_folders import bounded, hostile_files

GOOD = {"prompt": "2 + 2 =", "answer": "Two twos.\n#### 4", "extra": {"a": [1, None, 2.5]}}
LINES: dict[str, str] = {
    "an integer of 5,000 digits": '{"prompt": "a", "answer": ' + "9" * 5000 + "}",
    "a float beyond all floats": '{"prompt": "a", "answer": 1e999}',
    "nan": '{"prompt": "a", "answer": NaN}',
    "infinity": '{"prompt": "a", "answer": -Infinity}',
    "lists in lists, without an end": '{"prompt": ' + "[" * 100_000,
    "lists in lists": '{"prompt": "a", "answer": ' + "[" * 900 + "]" * 900 + "}",
    "half a character": r'{"prompt": "a \ud800 b"}',
    "half a character in a name": r'{"prompt": "a", "\udfff": 1}',
    "no name": '{"": 1}',
    "a name twice": '{"prompt": "a", "prompt": 5}',
    "NUL": r'{"prompt": "\u0000"}',
    "an empty prompt": '{"prompt": ""}',
    "null": '{"prompt": null}',
    "an empty object": "{}",
    "a number": "5",
    "a text": '"prompt"',
    "two objects": '{"prompt": "a"} {"prompt": "b"}',
    "single quotes": "{'prompt': 'a'}",
    "a byte order mark": '\ufeff{"prompt": "a"}',
    "messages: a number": '{"messages": 5}',
    "messages: a text": '{"messages": "user: hello"}',
    "messages: none": '{"messages": []}',
    "messages: texts": '{"messages": ["hello"]}',
    "messages: an object": '{"messages": {"role": "user", "content": "a"}}',
    "messages: no role": '{"messages": [{"content": "a"}]}',
    "messages: a role that is a number": '{"messages": [{"role": 5, "content": "a"}]}',
    "messages: no content": '{"messages": [{"role": "user"}]}',
    "input_ids alone": '{"input_ids": [1, 2]}',
}
OPTIONS: dict[str, dict[str, Any]] = {  # Any: as a run file has them
    "an attribute": {"prompt": "{prompt.nothing}"},
    "an attribute of Python": {"prompt": "{prompt.__class__.__mro__[9]}"},
    "an item": {"prompt": "{extra[b]}"},
    "a format for numbers": {"prompt": "{prompt:d}"},
    "a conversion nobody knows": {"prompt": "{prompt!x}"},
    "a width of gigabytes": {"prompt": "{prompt:>99999999999}"},
    "a column of itself": {"columns": {"prompt": "nothing"}},
    "a marker nowhere": {"answer_after": "@@@@"},
    "a NUL in the path": {"path": "a\0b"},
    "somebody's home": {"path": "~nobody-of-that-name/a.jsonl"},
    "a path of 10,000 letters": {"path": "a" * 10_000},
    "no path": {"path": ""},
}


def refused_or_read(read: Callable[[], Any], folder: Path) -> None:
    """Read the data: every row of it can be written as text, or somebody is told what is wrong with it."""
    try:
        with bounded(seconds=60):
            for row in read():
                json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except ArealError as error:
        assert isinstance(error, DatasetError)
        assert error.why, error


def write(path: Path, *lines: str) -> Path:
    """Write a file of lines."""
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("way", LINES)
def test_an_odd_line(way: str, tmp_path: Path) -> None:
    """Behind a good one."""
    path = write(tmp_path / "a.jsonl", json.dumps(GOOD), LINES[way])

    refused_or_read(lambda: jsonl(JsonlConfig(path=str(path))), tmp_path)


@pytest.mark.parametrize("way", [way for way in LINES if way.startswith("messages") and "content" not in way])
def test_messages_that_are_no_conversation(way: str, tmp_path: Path) -> None:
    """Are told with their line, and not by every episode of a run."""
    path = write(tmp_path / "a.jsonl", json.dumps(GOOD), LINES[way])

    with pytest.raises(DatasetError, match=r"a\.jsonl:2: column 'messages' is no conversation"):
        jsonl(JsonlConfig(path=str(path)))


@pytest.mark.parametrize("way", OPTIONS)
def test_an_odd_option(way: str, tmp_path: Path) -> None:
    """Of a good file."""
    path = write(tmp_path / "a.jsonl", json.dumps(GOOD))

    with bounded(seconds=60), pytest.raises(DatasetError) as told:
        jsonl(JsonlConfig(**{"path": str(path), **OPTIONS[way]}))
    assert told.value.why


@pytest.mark.parametrize("way", hostile_files())
def test_an_odd_file(way: str, tmp_path: Path) -> None:
    """In place of the file."""
    path = write(tmp_path / "a.jsonl", json.dumps(GOOD))
    hostile_files()[way](path)

    refused_or_read(lambda: jsonl(JsonlConfig(path=str(path))), tmp_path)


def test_a_file_with_any_bytes_changed(tmp_path: Path) -> None:
    """Bytes cut, doubled or replaced at random, 200 times."""
    good, draw = "\n".join([json.dumps(GOOD)] * 3).encode(), random.Random(7)
    path = tmp_path / "a.jsonl"
    for _ in range(200):
        start = draw.randrange(len(good))
        end = start + draw.randrange(8)
        path.write_bytes(good[:start] + draw.choice([b"", good[start:end] * 2, draw.randbytes(4)]) + good[end:])
        refused_or_read(lambda: jsonl(JsonlConfig(path=str(path), answer_after="####")), tmp_path)


def saved(folder: Path) -> str:
    """Write a data set as `save_to_disk` does."""
    datasets.Dataset.from_list([GOOD] * 3).save_to_disk(folder)
    return str(folder)


def parquet(folder: Path) -> str:
    """Write a folder with a file of parquet."""
    folder.mkdir()
    datasets.Dataset.from_list([GOOD] * 3).to_parquet(str(folder / "train.parquet"))
    return str(folder)


STORED: dict[str, tuple[Callable[[Path], str], str]] = {
    "saved, its state": (saved, "state.json"),
    "saved, its facts": (saved, "dataset_info.json"),
    "saved, its rows": (saved, "data-00000-of-00001.arrow"),
    "parquet": (parquet, "train.parquet"),
}


@pytest.mark.parametrize("kind", STORED)
def test_an_odd_stored_data_set(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its files, in every way a file can be odd."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    make, file = STORED[kind]
    for number, (way, spoil) in enumerate(hostile_files().items()):
        if way in {"a pipe", "a link to /dev/zero"}:
            continue  # the library opens it and waits, in its own code
        path = make(tmp_path / f"data-{number}")
        spoil(Path(path) / file)
        refused_or_read(partial(hub, HubConfig(path=path)), tmp_path)
