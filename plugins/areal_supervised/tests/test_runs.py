"""Every kind learns, evaluates held-out rows, saves a model that transformers loads, and goes on where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.contract.errors import ModelError
from areal_core.contract.workflow import RewardInput
from areal_core.loop.run_folder import RunFolder
from areal_report.history import History
from areal_report.journal import Journal
from areal_report.summary import summarize
from areal_supervised.scored import Scored, ScoredConfig
from areal_tasks.tiny import make_spell_model

KINDS = ("sft", "dpo", "ipo", "reward_model")
STEPS, TRL_STEPS = 24, 20
HELPER = Path(__file__).with_name("trl_losses.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and rows of both forms: a word and the same backward."""
    folder, rng = tmp_path_factory.mktemp("runs"), Random(1)
    rows = []
    for _ in range(128):
        word = "".join(rng.choice("abcdef") for _ in range(3))
        right = word[::-1]
        rows.append({"prompt": f"{word}>", "completion": right, "chosen": right, "rejected": word + right[0]})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    make_spell_model(folder / "m", 1)
    return folder


def run(folder: Path, kind: str, out: Path, *overrides: str, resume: bool = False) -> list[dict[str, Any]]:
    """Train, and return the lines of `metrics.jsonl`."""
    data = {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}}
    base = {
        "kind": kind,
        "out": str(out),
        "steps": STEPS,
        "options": {"batch_size": 16},
        "model": {"path": str(folder / "m")},
        "data": data,
        "actor": {"optimizer": {"lr": 3e-3}},
        "evaluation": {"data": data, "every_steps": STEPS // 2, "max_prompts": 40},
    }
    assert train(load_config(None, overrides, base), resume=resume, quiet=True) == 0
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "kind",
    ["sft", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("dpo", "ipo", "reward_model"))],
)
@pytest.mark.slow
def test_a_kind_learns_and_is_shown_like_any_run(folder: Path, tmp_path: Path, kind: str) -> None:
    records = run(folder, kind, tmp_path / "run")

    history, journal = History.read(tmp_path / "run/metrics.jsonl"), Journal.read(tmp_path / "run/events.jsonl")
    summary = summarize(history, journal)
    assert summary["status"] == "finished" and summary["steps"] == STEPS
    assert summary["loss_last"] < 0.85 * summary["loss_first"]
    assert sorted(journal.evaluations) == [0, STEPS // 2, STEPS]
    assert journal.evaluations[STEPS] < 0.85 * journal.evaluations[0]
    if kind != "sft":
        assert records[-1]["eval_accuracy"] > 0.8
    assert not {"reward", "staleness_mean", "in_flight", "tokens_generated"} & records[-1].keys()
    assert (tmp_path / "run/report.html").is_file() and (tmp_path / "run/reward.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_run_that_stopped_goes_on_bit_for_bit(folder: Path, tmp_path: Path, kind: str) -> None:
    """Rows, optimizer and reference model are where they were: 24 steps are 12 and 12."""
    whole = run(folder, kind, tmp_path / "whole")
    run(folder, kind, tmp_path / "halves", f"steps={STEPS // 2}", f"actor.optimizer.total_steps={STEPS}")
    halves = run(folder, kind, tmp_path / "halves", resume=True)

    assert [record["loss"] for record in halves] == [record["loss"] for record in whole]
    assert [record["grad_norm"] for record in halves] == [record["grad_norm"] for record in whole]


@pytest.mark.slow
def test_a_reward_model_is_loaded_by_transformers_and_prefers_what_it_learned(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    run(folder, "reward_model", tmp_path / "run")
    latest = RunFolder(tmp_path / "run").latest()
    assert latest is not None
    model = AutoModelForTokenClassification.from_pretrained(latest / "model")
    tokenizer = AutoTokenizer.from_pretrained(latest / "model")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()[:40]]

    def reward(text: str) -> float:
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        with torch.no_grad():
            return float(model(torch.tensor([ids])).logits[0, -1, 0])

    right = sum(reward(row["prompt"] + row["chosen"]) > reward(row["prompt"] + row["rejected"]) for row in rows)
    assert right / len(rows) > 0.8
    scored = Scored(ScoredConfig(path=str(tmp_path / "run")))
    for row in rows[:5]:
        value = RewardInput(prompt="", completion=row["chosen"], completion_ids=(), stop_reason="stop", row=row)
        assert scored([value]) == [pytest.approx(reward(row["prompt"] + row["chosen"]), abs=1e-5)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_steps_have_the_losses_of_trls_own_trainers(folder: Path, tmp_path: Path, kind: str) -> None:
    settings = {"max_steps": TRL_STEPS, "per_device_train_batch_size": 16, "learning_rate": 1e-3, "weight_decay": 0.0}
    if kind in ("dpo", "ipo"):
        settings["beta"] = 0.2
    command = [sys.executable, str(HELPER), kind, str(folder / "m"), str(folder / "rows.jsonl"), json.dumps(settings)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "TQDM_DISABLE": "1"}
    theirs = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    expected = json.loads(theirs.stdout.splitlines()[-1])

    records = run(
        folder,
        kind,
        tmp_path / "run",
        f"steps={TRL_STEPS}",
        "data.shuffle=false",
        "evaluation.data=null",
        "actor.optimizer={lr: 0.001, weight_decay: 0.0}",
        *(["options.beta=0.2"] if kind in ("dpo", "ipo") else []),
    )

    assert len(expected) == TRL_STEPS
    assert [record["loss"] for record in records] == pytest.approx(expected, rel=0, abs=1e-4)


def test_what_is_no_reward_model_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="Qwen3ForCausalLM, which has no scalar head"):
        Scored(ScoredConfig(path=str(folder / "m")))
    with pytest.raises(ModelError, match="does not exist"):
        Scored(ScoredConfig(path=str(folder / "nothing")))
