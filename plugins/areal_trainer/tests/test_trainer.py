"""Arguments are keys of a run; what is in memory is kept as files that a yaml can name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

import areal_core as areal
from areal_agents.source import agent_function
from areal_core.config.load import load_config
from areal_core.contract.errors import ArealError, ConfigError, DatasetError, RunFolderError, UnknownKey
from areal_torch.testing.models import make_tiny_model
from areal_trainer.notebook import curve_svg
from areal_trainer.result import Curve, Result, Table

ROWS = [{"prompt": "sun>", "answer": "sunsun"}, {"prompt": "moon>", "answer": "moonmoon"}]

SHORT = {"sampling": {"max_new_tokens": 8}}


def right(completion: str, answer: str) -> float:
    return float(completion == answer)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a tiny model's folder."""
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path)
    return str(path)


def test_arguments_are_keys_of_a_run(tmp_path: Path) -> None:
    """The same as in a yaml, beside any other key."""
    made = areal.Trainer(
        "m",
        reward="exact_match",
        data="spell",
        held_out={"name": "spell", "options": {"split": "held"}},
        algorithm={"minibatches": 2},
        train="fsdp:d2",
        infer="vllm:d1",
        steps=7,
        out=tmp_path,
        rollout={"group_size": 4, "sampling": {"max_new_tokens": 16}},
    )

    assert made.config == load_config(
        base={
            "model": {"path": "m"},
            "data": {"name": "spell"},
            "evaluation": {"data": {"name": "spell", "options": {"split": "held"}}},
            "algorithm": {"minibatches": 2},
            "actor": {"backend": "fsdp:d2"},
            "rollout": {
                "backend": "vllm:d1",
                "reward": {"name": "exact_match"},
                "group_size": 4,
                "sampling": {"max_new_tokens": 16},
            },
            "steps": 7,
            "out": str(tmp_path),
        }
    )


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        ("openai/gsm8k", {"name": "hub", "options": {"path": "openai/gsm8k"}}),
        ("rows.jsonl", {"name": "jsonl", "options": {"path": str(Path("rows.jsonl").absolute())}}),
        ("chain_sum", {"name": "chain_sum", "options": {}}),
        ({"name": "spell", "options": {"seed": 2}}, {"name": "spell", "options": {"seed": 2}}),
    ],
)
def test_data_is_named_in_many_ways(data: Any, keys: dict[str, Any]) -> None:
    """A registered name, a file, a name on the hub, keys."""
    made = areal.Trainer("m", data=data).config.data

    assert {"name": made.name, "options": dict(made.options)} == keys


def test_what_is_in_memory_round_trips_through_yaml(tmp_path: Path, model: str) -> None:
    """Rows and a function become files beside the yaml; what is read from it is the same run, and can be planned."""
    made = areal.Trainer(model, reward=right, data=ROWS, held_out=ROWS[:1], steps=3, device="cpu", rollout=SHORT)
    text = made.to_yaml(tmp_path / "run.yaml")
    again = areal.Trainer.from_yaml(tmp_path / "run.yaml", ["steps=4"])

    assert sorted(path.name for path in (tmp_path / "run.yaml.task").iterdir()) == [
        "held_out.jsonl",
        "reward.py",
        "rows.jsonl",
    ]
    assert [json.loads(line) for line in (tmp_path / "run.yaml.task/rows.jsonl").read_text().splitlines()] == ROWS
    assert areal.Trainer.from_yaml(tmp_path / "run.yaml").to_yaml() == text
    assert load_config(tmp_path / "run.yaml", ["steps=4"]) == again.config
    assert "reference:d1" in repr(again.plan())


async def ask(row: dict[str, Any], base_url: str, api_key: str) -> float:
    return float(len(row["prompt"]) + len(base_url) + len(api_key))


def test_an_agent_is_a_function_a_name_or_options(tmp_path: Path) -> None:
    """As a function it becomes a file beside the yaml, which imports to the same function."""
    named = areal.Trainer("m", agent="mine.py:run").config.rollout.workflow
    optioned = areal.Trainer("m", agent={"command": ["./mine"]}).config.rollout.workflow
    areal.Trainer("m", agent=ask).to_yaml(tmp_path / "run.yaml")
    kept = load_config(tmp_path / "run.yaml").rollout.workflow

    assert (named.name, named.options) == ("agent", {"run": "mine.py:run"})
    assert (optioned.name, optioned.options) == ("agent", {"command": ["./mine"]})
    assert (kept.name, kept.options) == ("agent", {"run": f"{tmp_path / 'run.yaml.task/agent.py'}:ask"})
    again = agent_function(kept.options["run"])
    assert asyncio.run(again({"prompt": "ab"}, "url", "key")) == 8.0


def test_a_data_set_of_the_library_is_kept_in_a_folder(tmp_path: Path) -> None:
    """As `save_to_disk` writes it."""
    made = areal.Trainer("m", data=datasets.Dataset.from_list(ROWS))
    made.to_yaml(tmp_path / "run.yaml")

    assert made.config.data.name == "hub"
    assert list(datasets.load_from_disk(str(tmp_path / "run.yaml.task/rows-dataset"))) == ROWS


def test_a_plan_leaves_nothing_behind(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the run folder; its files are named where the run will put them."""
    monkeypatch.chdir(tmp_path)
    planned = areal.Trainer(model, reward=right, data=ROWS, device="cpu", steps=3, rollout=SHORT).plan()

    assert list(tmp_path.iterdir()) == []
    assert planned.plan.config.imports == (str(tmp_path / "runs/run/task/reward.py"),)
    assert "3 steps" in repr(planned)


def unjson(value: object) -> list[dict[str, object]]:
    return [{"prompt": "a"}, {"prompt": "b", "image": value}]


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"data": unjson(object())}, DatasetError, "row 1: column 'image' cannot be written as JSON"),
        ({"data": unjson(float("nan"))}, DatasetError, "row 1: column 'image' cannot be written as JSON"),
        ({"data": []}, DatasetError, "there are no rows"),
        ({"data": [5]}, DatasetError, "row 0 is a int"),
        ({"data": 5}, DatasetError, "data is a int"),
        ({"data": "no-such-thing"}, DatasetError, "there is no data set 'no-such-thing'"),
        ({"reward": len}, ConfigError, "is a builtin_function_or_method, and no function"),
        ({"rollout": {"backend": "vllm:d1"}, "infer": "sglang:d1"}, ConfigError, "rollout.backend is given twice"),
        ({"stepss": 3}, UnknownKey, "stepss"),
    ],
)
def test_a_wrong_argument_is_told_at_once(arguments: dict[str, Any], kind: type[ArealError], says: str) -> None:
    """By its name, before anything is written."""
    with pytest.raises(kind, match=says):
        areal.Trainer("m", **arguments)


def test_no_model_is_told_while_planning() -> None:
    """With both places where one is named."""
    with pytest.raises(ConfigError, match="no model given"):
        areal.Trainer(reward="exact_match", data=ROWS, device="cpu").plan()


def test_a_result_reads_a_run_folder(tmp_path: Path) -> None:
    """Metrics as a table and a data frame, the curve as a picture; what is not there is told."""
    with pytest.raises(RunFolderError, match="holds no run"):
        Result(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.25}\n{"step": 2, "reward": 0.75}\n{"step": 3, "re')
    (tmp_path / "reward.png").write_bytes(b"png")
    result = Result(tmp_path)

    assert result.metrics == [{"step": 1, "reward": 0.25}, {"step": 2, "reward": 0.75}]
    assert result.metrics.to_pandas()["reward"].tolist() == [0.25, 0.75]
    assert (result.curve._repr_png_(), result.curve.values, result.finished) == (b"png", (0.25, 0.75), False)
    assert "polyline" in result._repr_html_() and "going on, 2 steps, reward 0.750" in repr(result)
    with pytest.raises(RunFolderError, match="holds no trained model"):
        result.model  # noqa: B018


def test_what_a_notebook_shows_is_escaped() -> None:
    """Text of a run is no markup."""
    assert "<script>" not in Table([{"step": "<script>"}])._repr_html_()
    assert Curve(Path("nowhere"), [0.0, 1.0])._repr_html_() == curve_svg([0.0, 1.0])
    assert curve_svg([1.0]) == ""
