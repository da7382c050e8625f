"""The promise on the first page: one command, and the reward goes up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SUMMARY_KEYS = {
    "status", "steps", "seconds", "reward_first", "reward_last", "eval_first", "eval_last", "max_staleness_configured",
    "max_staleness_seen", "episodes_trained", "tokens_generated", "tokens_trained", "weight_updates", "train_backend",
    "infer_backend", "idle_share_train", "idle_share_infer",
}  # fmt: skip


def _quickstart(out: Path, *arguments: str) -> tuple[dict[str, object], str]:
    words = [sys.executable, "-m", "areal_core.cli.main", "quickstart", "--out", str(out), *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, object] = json.loads((out / "summary.json").read_text())
    return summary, done.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstart_learns_on_every_seed(tmp_path: Path, seed: int) -> None:
    """Held-out greedy reward from under 0.1 to at least 0.9 within 100 asynchronous steps."""
    summary, output = _quickstart(tmp_path / "run", "--seed", str(seed))

    assert summary.keys() >= SUMMARY_KEYS
    assert summary["status"] == "finished"
    assert summary["steps"] == 100
    assert summary["eval_first"] < 0.1  # type: ignore[operator]
    assert summary["eval_last"] >= 0.9  # type: ignore[operator]
    assert summary["max_staleness_seen"] <= summary["max_staleness_configured"] == 2  # type: ignore[operator]
    assert summary["weight_updates"] == 100
    assert summary["episodes_trained"] == 100 * 16 * 8
    assert "report.html" in output
    for name in ("config.yaml", "metrics.jsonl", "events.jsonl", "report.html", "reward.png"):
        assert (tmp_path / "run" / name).stat().st_size > 0


def test_two_ranks_and_two_replicas_learn_too(tmp_path: Path) -> None:
    """The same preset, `fsdp:d2` and `reference:d2`."""
    arguments = ("--train", "fsdp:d2", "--infer", "reference:d2", "--steps", "40")
    summary, _ = _quickstart(tmp_path / "run", *arguments)

    assert (summary["train_backend"], summary["infer_backend"]) == ("fsdp:d2", "reference:d2")
    assert summary["eval_last"] >= 0.8  # type: ignore[operator]


@pytest.mark.long
def test_a_pretrained_language_model_learns_on_a_laptop(tmp_path: Path) -> None:
    """SmolLM2-135M: held-out greedy reward from 0 to at least 0.4 within 20 of the preset's 30 steps."""
    pytest.importorskip("gguf", reason="reading the model needs areal-core[smollm2]")
    summary, _ = _quickstart(tmp_path / "run", "--model", "smollm2", "--steps", "20")

    assert summary["eval_first"] < 0.1  # type: ignore[operator]
    assert summary["eval_last"] >= 0.4  # type: ignore[operator]
    assert summary["steps"] == 20
