"""A run that ends with an error keeps what it trained, and goes on where it stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .live_run import live_run, trained_tasks

pytestmark = pytest.mark.slow

USER_FILE = """
from pathlib import Path
from areal_core.plugins.marks import reward

@reward("fragile")
def fragile(prompt, completion, completion_ids, stop_reason, row):
    if Path(__file__).with_name("broken").exists():
        raise ValueError("the judge is out of order")
    return float(len(completion_ids))
"""
RUN_YAML = """
imports: [user.py]
data: {name: spell, options: {split: train, seed: 1, max_word_len: 4}}
rollout:
  prompts_per_step: 4
  group_size: 2
  max_failed_share: 0
  sampling: {max_new_tokens: 8}
  reward: {name: fragile}
evaluation: {before: false, every_steps: 0}
"""


@pytest.fixture
def words(tmp_path: Path, model: Path) -> list[str]:
    """The command line of a small run with a reward that can be broken, into the folder `run`."""
    (tmp_path / "user.py").write_text(USER_FILE)
    (tmp_path / "run.yaml").write_text(RUN_YAML.replace("user.py", str(tmp_path / "user.py")))
    start = [sys.executable, "-m", "areal_core.cli.main", "train", str(tmp_path / "run.yaml")]
    return [*start, f"model.path={model}", f"out={tmp_path / 'run'}"]


def test_a_failed_reward_costs_no_step_and_the_run_goes_on_where_it_stopped(tmp_path: Path, words: list[str]) -> None:
    """Its state is saved though no checkpoint was due, the error says how to go on, each prompt is trained once."""
    folder = tmp_path / "run"
    with live_run([*words, "steps=40"], folder) as run:
        run.wait_for_step(3)
        (tmp_path / "broken").touch()
        code, output = run.wait()
        stopped_at = len(run.steps())

        assert code == 1
        assert "the judge is out of order" in output
        assert f"step-{stopped_at:06d} is saved. To continue: areal train --resume {folder}" in output
        assert run.survivors() == []

    (tmp_path / "broken").unlink()
    steps = stopped_at + 3
    with live_run([*words[:4], "--resume", str(folder), f"steps={steps}"], folder) as run:
        code, output = run.wait()

        assert code == 0, output
        assert [record["step"] for record in run.steps()] == list(range(1, steps + 1))
        assert run.survivors() == []
    trained = trained_tasks(folder, last_version=steps - 1)
    assert len(set(trained)) == len(trained) == 4 * steps
