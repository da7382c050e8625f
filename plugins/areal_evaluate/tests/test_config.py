"""A tasks.yaml is read as a run's yaml is."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_evaluate.config import load_tasks, run_config


@pytest.mark.parametrize(("text", "value"), [("1e-1", 0.1), ("5E-1", 0.5), (".5e-1", 0.05)])
def test_a_number_may_have_an_exponent_without_a_point(text: str, value: float, tmp_path: Path) -> None:
    """In the file, in an override, and as what a benchmark's run gets."""
    file = tmp_path / "tasks.yaml"
    file.write_text(f"pass_reward: {text}\nbenchmarks:\n  one:\n    rollout: {{sampling: {{temperature: {text}}}}}\n")

    tasks = load_tasks(file, [f"confidence={text}"])

    assert (tasks.pass_reward, tasks.confidence) == (value, value)
    assert run_config(tasks, "one", "model").rollout.sampling.temperature == value
