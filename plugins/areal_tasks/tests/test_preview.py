"""A dry run shows what the first row becomes, and refuses what the run would have failed with later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import ArealError, DatasetError, PlanError
from areal_core.plugins.registry import Registry
from areal_tasks.preview import preview
from areal_tasks.tiny import make_spell_model

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}>{{ m['content'] }}-{% endfor %}{{ 'a>' if add_generation_prompt }}"
)
OWN = """
from attrs import frozen

from areal_core import dataset, reward

@reward("right")
def right(completion, answer): return 1.0

@reward("gold")
def gold(completion, gold): return 1.0

@reward("lists")
def lists(completions, answer, **more): return [1.0]

@frozen
class Nothing: ...

@reward("raises", config=Nothing)
def raises(config): raise SystemExit(3)

@reward("tells", config=Nothing)
class Tells:
    def __init__(self, config): ...
    def columns(self): return ["answer", "gold"]
    def __call__(self, completion, row, **more): return float(completion == row["gold"])

@dataset("breaks")
def breaks(): return [1 / 0]

@dataset("none")
def none(): return []
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model that has a chat template, rows of several forms, and a user's file."""
    path = tmp_path_factory.mktemp("run")
    model = make_spell_model(path / "model", 1)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    rows: Mapping[str, Mapping[str, Any]] = {
        "text": {"prompt": "sun>", "answer": "nus"},
        "talk": {"prompt": [{"role": "user", "content": "sun"}], "answer": "nus", "level": 3},
        "pair": {"prompt": "sun>", "chosen": "nus", "rejected": "sun"},
    }
    for name, row in rows.items():
        (path / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 3)
    (path / "own.py").write_text(OWN)
    return path


def shown(folder: Path, data: str, reward: str = "right", **more: Any) -> str:
    """Return the preview of a run on a file of rows, or on a registered data set."""
    file = folder / f"{data}.jsonl"
    keys = {"name": "jsonl", "options": {"path": str(file)}} if file.exists() else {"name": data}
    base = {
        "imports": [str(folder / "own.py")],
        "model": {"path": str(folder / "model")},
        "data": keys,
        "device": "cpu",
        **({"rollout": {"reward": {"name": reward}, "sampling": {"max_new_tokens": 8}}} if reward else {}),
        **more,
    }
    registry = Registry()
    return preview(make_plan(load_config(base=base), registry, {}), registry)


def test_a_prompt_is_shown_as_the_model_reads_it_and_the_reward_with_its_arguments(folder: Path) -> None:
    """Text as it is."""
    assert shown(folder, "text").splitlines() == [
        "data      jsonl: 3 rows, of prompt, answer",
        "prompt    4 tokens, as the model reads the first row:",
        "          sun>",
        "reward    right(answer='nus', completion='...')",
    ]


def test_a_conversation_is_shown_through_the_chat_template(folder: Path) -> None:
    """And a reward of lists with lists."""
    text = shown(folder, "talk", "lists", evaluation={"data": {"name": "spell", "options": {"size": 5}}})

    assert "          u>sun-a>" in text
    assert "held out  spell: 5 rows" in text
    assert "completions=[[{'content': '...', 'role': 'assistant'}]]" in text and "level=[3]" in text


def test_the_renderer_is_named(folder: Path) -> None:
    """A workflow that writes conversations says which renderer it found."""
    workflow = {"name": "multi_turn", "options": {"renderer": "plain"}}
    rollout = {"reward": {"name": "right"}, "sampling": {"max_new_tokens": 8}, "workflow": workflow}

    assert "renderer  plain\n" in shown(folder, "text", rollout=rollout)


def composed(**parts: Any) -> dict[str, Any]:
    """Return keys under `rollout` of a composed reward."""
    options = {"parts": {name: {"name": part} for name, part in parts.items()}}
    return {"rollout": {"reward": {"name": "composed", "options": options}, "sampling": {"max_new_tokens": 8}}}


def test_of_a_composed_reward_every_part_is_shown(folder: Path) -> None:
    """By its name, with what it is called with; one that lacks something is named."""
    lines = shown(folder, "text", "", **composed(correct="right", spelt="lists")).splitlines()

    at = lines.index("reward    composed of 2 parts:")
    assert lines[at + 1] == "          correct(answer='nus', completion='...')"
    assert lines[at + 2].startswith("          spelt(") and "answer=['nus']" in lines[at + 2]
    with pytest.raises(PlanError, match="reward 'mine': the reward function needs 'gold'"):
        shown(folder, "text", "", **composed(correct="right", mine="gold"))
    with pytest.raises(PlanError, match="reward 'composed': the first row of data has no column 'gold'"):
        shown(folder, "text", "", **composed(correct="right", mine="tells"))


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("sft", "text", ["learned   4 of 8 tokens of the first row:", "          nus<eos>", "          sun>"]),
        ("dpo", "pair", ["learned   4 of 8 tokens of the first row:", "          nus<eos>", "          sun<eos>"]),
    ],
)
def test_of_a_row_to_learn_from_it_is_shown_what_is_learned(
    folder: Path, kind: str, data: str, says: list[str]
) -> None:
    """Every sequence, with its end token."""
    lines = shown(folder, data, "", kind=kind).splitlines()

    assert [line for line in says if line not in lines] == []


@pytest.mark.parametrize(
    ("data", "reward", "more", "kind", "says"),
    [
        ("text", "gold", {}, PlanError, "reward 'gold': the reward function needs 'gold'"),
        ("text", "tells", {}, PlanError, "reward 'tells': the first row of data has no column 'gold'"),
        ("text", "raises", {}, PlanError, "reward 'raises' cannot be built"),
        ("breaks", "right", {}, DatasetError, "data set 'breaks' cannot be read"),
        ("none", "right", {}, DatasetError, "the data set of data has no rows"),
        ("pair", "lists", {}, PlanError, "pair of answers, and kind is rl"),
        ("pair", "", {"kind": "sft"}, DatasetError, "the first row: the row lacks columns"),
        ("text", "", {"kind": "dpo"}, DatasetError, "wanted: chosen and rejected"),
        (
            "talk",
            "right",
            {"evaluation": {"data": {"name": "jsonl", "options": {"path": "nowhere.jsonl"}}}},
            DatasetError,
            "nowhere.jsonl",
        ),
    ],
)
def test_what_the_run_would_fail_with_is_told_now(
    folder: Path, data: str, reward: str, more: dict[str, Any], kind: type[ArealError], says: str
) -> None:
    """A reward that asks for a column that is not there, data that cannot be read, rows of another kind of run."""
    with pytest.raises(kind, match=says):
        shown(folder, data, reward, **more)


def test_a_switch_that_the_template_lacks_is_told_now(folder: Path) -> None:
    """Not by every episode."""
    workflow = {"options": {"enable_thinking": False}}
    with pytest.raises(DatasetError, match="enable_thinking=false has no effect"):
        shown(
            folder,
            "talk",
            "",
            rollout={"reward": {"name": "right"}, "workflow": workflow, "sampling": {"max_new_tokens": 8}},
        )
