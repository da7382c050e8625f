"""The promise on the first page: one command, and the reward goes up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.end_to_end.quickstarts import quickstart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SUMMARY_KEYS = {
    "status", "steps", "seconds", "reward_first", "reward_last", "eval_first", "eval_last", "max_staleness_configured",
    "max_staleness_seen", "episodes_trained", "tokens_generated", "tokens_trained", "weight_updates", "train_backend",
    "infer_backend", "idle_share_train", "idle_share_infer",
}  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstart_learns_on_every_seed(tmp_path: Path, seed: int) -> None:
    """Held-out greedy reward from under 0.1 to at least 0.9 within 100 asynchronous steps."""
    summary, output = quickstart(tmp_path / "run", "--seed", str(seed))

    assert summary.keys() >= SUMMARY_KEYS
    assert summary["status"] == "finished"
    assert summary["steps"] == 100
    assert summary["eval_first"] < 0.1
    assert summary["eval_last"] >= 0.9
    assert summary["max_staleness_seen"] <= summary["max_staleness_configured"] == 2
    assert summary["weight_updates"] == 100
    assert summary["episodes_trained"] == 100 * 16 * 8
    assert "report.html" in output
    for name in ("config.yaml", "metrics.jsonl", "events.jsonl", "report.html", "reward.png"):
        assert (tmp_path / "run" / name).stat().st_size > 0


def test_two_ranks_and_two_replicas_learn_too(tmp_path: Path) -> None:
    """The same preset, `fsdp:d2` and `reference:d2`."""
    arguments = ("--train", "fsdp:d2", "--infer", "reference:d2", "--steps", "40")
    summary, _ = quickstart(tmp_path / "run", *arguments)

    assert (summary["train_backend"], summary["infer_backend"]) == ("fsdp:d2", "reference:d2")
    assert summary["eval_last"] >= 0.8


@pytest.mark.long
def test_a_pretrained_language_model_learns_on_a_laptop(tmp_path: Path) -> None:
    """SmolLM2-135M: held-out greedy reward from 0 to at least 0.4 within 20 of the preset's 30 steps."""
    pytest.importorskip("gguf", reason="reading the model needs areal-core[smollm2]")
    summary, _ = quickstart(tmp_path / "run", "--model", "smollm2", "--steps", "20")

    assert summary["eval_first"] < 0.1
    assert summary["eval_last"] >= 0.4
    assert summary["steps"] == 20
