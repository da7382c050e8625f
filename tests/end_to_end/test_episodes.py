"""A killed run goes on with the episodes it had finished, and every episode can be read."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader

from .live_run import command, live_run

pytestmark = pytest.mark.slow

GROUP, PROMPTS, STEPS = 8, 16, 8


def test_a_killed_run_resumes_with_what_was_finished(tmp_path: Path, model: Path) -> None:
    """Finished groups come back with their versions; each prompt is trained once, within the staleness bound."""
    folder = tmp_path / "run"
    settings = (f"steps={STEPS}", "checkpoint.every_steps=2", "evaluation.every_steps=0", "rollout.max_staleness=3")
    with live_run(command(folder, model, *settings), folder) as run:
        run.wait_until(lambda: _waiting(folder) >= GROUP and _checkpoints(folder) >= 1, "a finished group in the store")
        run.send(signal.SIGKILL)
        run.wait()
    with live_run([sys.executable, "-m", "areal_core.cli.main", "train", "--resume", str(folder)], folder) as run:
        code, output = run.wait()

    assert code == 0, output
    (kept,) = [event for event in read_lines(folder / "events.jsonl") if event["kind"] == "episodes_kept"]
    with Reader(folder) as reader:
        trained = list(reader.facts(Filter(fate="trained")))
    assert kept["groups"] >= 1
    assert set(Counter(facts["step"] for facts in trained).items()) == {
        (s, GROUP * PROMPTS) for s in range(1, STEPS + 1)
    }
    assert set(Counter((facts["task_index"], facts["member"]) for facts in trained).values()) == {1}
    assert all(0 <= facts["step"] - 1 - facts["oldest_version"] <= 3 for facts in trained)


def test_the_episodes_of_a_run_are_read_from_the_command_line(tmp_path: Path, model: Path) -> None:
    """Prompts, answers and rewards of training and evaluation, as text and as JSON; ratios, which were asked for."""
    folder = tmp_path / "run"
    words = command(folder, model, "steps=2", "evaluation.every_steps=0", "episodes.ratios=true")
    assert subprocess.run(words, capture_output=True).returncode == 0
    areal = [sys.executable, "-m", "areal_core.cli.main", "episodes", str(folder)]

    shown = subprocess.run([*areal, "--order", "best", "--limit", "2"], capture_output=True, text=True, check=True)
    lines = subprocess.run(
        [*areal, "--step", "2", "--limit", "1000", "--json"], capture_output=True, text=True, check=True
    )
    episodes = [json.loads(line) for line in lines.stdout.splitlines()]

    assert "2 of" in shown.stdout and "trained in step" in shown.stdout
    assert len(episodes) == GROUP * PROMPTS
    assert all([turn["role"] for turn in episode["trajectories"][0]] == ["given", "generated"] for episode in episodes)
    assert all(episode["row"]["prompt"] == episode["trajectories"][0][0]["text"] for episode in episodes)
    with Reader(folder) as reader:
        assert reader.count(Filter(kind="eval")) > 0
        first = [columns for facts in reader.facts(Filter(step=1)) for columns in reader.learned(facts["id"])]
    ratios = torch.cat([columns["ratio"][columns["ratio"] > 0] for columns in first])
    assert len(first) == GROUP * PROMPTS
    torch.testing.assert_close(ratios, torch.ones_like(ratios), atol=1e-3, rtol=0.0)  # the same weights, two engines


def _checkpoints(folder: Path) -> int:
    return len([path for path in folder.glob("checkpoints/step-*") if not path.name.endswith(".partial")])


def _waiting(folder: Path) -> int:
    """Return how many finished episodes wait for their step."""
    try:
        with Reader(folder) as reader:
            return reader.count(Filter(fate="waiting"))
    except Exception as error:
        assert isinstance(error, sqlite3.Error) or "there is no" in str(error) or "version 0" in str(error)
        return 0
