"""A run that ends with an error keeps what it trained, and goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader

from .live_run import live_run, trained_tasks

pytestmark = pytest.mark.slow

USER_FILE = """
import time
from pathlib import Path
from areal_core.plugins.marks import reward, workflow

@reward("fragile")
def fragile(prompt, completion, completion_ids, stop_reason, row):
    if Path(__file__).with_name("broken").exists():
        raise ValueError("the judge is out of order")
    return float(len(completion_ids))

@reward("judged")
def judged(prompt, completion, completion_ids, stop_reason, row):
    headers = {"Authorization": "Bearer hunter2.of-the-judge"}
    raise ConnectionError(f"401 of https://judge/v1?api_key=sk-hunter2 with {headers}, out of order")

@workflow("blocking")
class Blocking:
    async def arun_episode(self, engine, data):
        await engine.generate(engine.tokenizer.encode(data["prompt"]))
        time.sleep(1000)
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
    """Its state is saved though no checkpoint was due, the error says how to go on, each prompt is trained once.

    SIGTERM to the whole process group, as batch systems send it, is like Ctrl-C: no reward process goes first.
    """
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
    with live_run(["setsid", *words[:4], "--resume", str(folder), "steps=1000"], folder) as run:
        run.wait_for_step(stopped_at + 3)
        os.killpg(run.process.pid, signal.SIGTERM)
        code, output = run.wait()
        steps = len(run.steps())

        assert code == 130, output
        assert f"step-{steps:06d} is saved. To continue: areal train --resume {folder}" in output
        assert [record["step"] for record in run.steps()] == list(range(1, steps + 1))
        assert "  steps: 40 -> 1000" in output.splitlines()
        assert "prompts lost 0, trained twice 0, episodes failed " in output
        assert run.survivors() == []
    trained = trained_tasks(folder, last_version=steps - 1)
    assert len(set(trained)) == len(trained) == 4 * steps
    kinds = [event["kind"] for event in read_lines(folder / "events.jsonl")]
    assert not {"group_failed", "reward_process_replaced"} & set(kinds[kinds.index("run_ended") :])


def test_what_an_error_holds_of_secrets_is_nowhere_written(tmp_path: Path, words: list[str]) -> None:
    """The key and the token of a judge that refused, and the line of code they stand in; the rest is told."""
    folder = tmp_path / "run"
    with live_run([*words, "steps=2", "rollout.reward.name=judged"], folder) as run:
        code, output = run.wait()

    assert code == 1 and "out of order" in output
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"events.jsonl", "summary.json", "report.html", "episodes.sqlite"} <= files.keys()
    assert [name for name, content in files.items() if b"hunter2" in content] == [] and "hunter2" not in output
    assert b"https://judge/v1?api_key=<redacted>" in files["events.jsonl"]
    with Reader(folder) as reader:
        assert "Bearer <redacted>" in next(reader.facts(Filter(fate="failed")))["error"]


def test_a_blocked_event_loop_is_named_and_ends_at_the_third_ctrl_c(tmp_path: Path, words: list[str]) -> None:
    """Whoever wrote `time.sleep` in a workflow reads the line, and is not kept waiting."""
    with live_run([*words, "steps=9", "rollout.workflow.name=blocking"], tmp_path / "run") as run:
        assert run.process.stdout is not None
        said = [""]
        while "everything waits: " not in said[-1]:
            said.append(run.process.stdout.readline())
            assert said[-1], f"the run ended before:\n{''.join(said)}"
        run._look()
        while run.process.poll() is None:  # signals that come at once may count as one
            run.send(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(1.0)

        assert "user.py:21 in arun_episode: time.sleep(1000)" in said[-1]
        assert run.process.returncode == 130
        assert run.survivors() == []
    events = list(read_lines(tmp_path / "run" / "events.jsonl"))
    assert [event["seconds"] >= 5.0 for event in events if event["kind"] == "event_loop_held"] == [True]
