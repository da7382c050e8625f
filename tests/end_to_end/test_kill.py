"""Kill -9 any process of a live run: an error that names it, and nothing left behind."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader

from .live_run import LiveRun, command, live_run, trained_once

pytestmark = pytest.mark.slow


def _each_member_once(folder: Path, steps: int) -> None:
    """Every prompt is trained once, with each of its members, in steps that are full."""
    used = trained_once(folder, steps=steps, prompts=16)
    with Reader(folder) as reader:
        kept = Counter((each["task_index"], each["member"]) for each in reader.facts(Filter(fate="trained")))
    assert kept == Counter((task, member) for task in used for member in range(8))


def _nothing_left(run: LiveRun, survive_s: float = 10.0) -> None:
    """No process, no shared memory, no half-written checkpoint."""
    assert run.survivors(survive_s) == []
    assert run.left_in_shared_memory() == []
    assert not list(run.folder.glob("checkpoints/*.partial"))


@pytest.mark.parametrize("role", ["actor", "rollout"])
def test_a_killed_worker_ends_the_run_with_an_error_that_names_it(tmp_path: Path, model: Path, role: str) -> None:
    """With the signal, the rank and the log, and exit code 1: no step waits for it until a deadline."""
    folder = tmp_path / "run"
    alone = ("rollout.max_replacements=0", "scheduler.restarts=0")
    words = command(folder, model, "steps=1000", "actor.backend=fsdp:d1", *alone)
    with live_run(words, folder) as run:
        run.wait_for_step(3)
        run.worker(role).kill()
        code, output = run.wait()

        assert code == 1, output
        assert f"worker {role}/0" in output and "SIGKILL" in output
        assert run.summary()["status"] == "failed"
        _nothing_left(run)


def test_a_run_starts_again_by_itself_when_its_trainer_is_killed(tmp_path: Path, model: Path) -> None:
    """The same command ends well, once from its beginning and once from a checkpoint, each prompt trained once."""
    folder = tmp_path / "run"
    saving = ("checkpoint.every_steps=4", "checkpoint.every_s=0", "evaluation.before=false")
    with live_run(command(folder, model, "steps=8", "actor.backend=reference:d1", *saving), folder) as run:
        run.wait_for_step(2)
        run.worker("actor").kill()
        run.wait_for_event("run_restarted")
        run.wait_for_event("checkpoint")
        run.worker("actor").kill()
        code, output = run.watch()

        assert code == 0, output
        assert "was killed by SIGKILL: starting again from its beginning, restart 1 of 2" in output
        assert "starting again from step-000004 in 1 s, restart 2 of 2" in output
        assert [record["step"] for record in run.steps()] == list(range(1, 9))
        summary = run.summary()
        assert (summary["status"], summary["restarts"], summary["episodes_trained"]) == ("finished", 2, 8 * 128)
        assert summary["max_staleness_seen"] <= 2
        _nothing_left(run)
    _each_member_once(folder, steps=8)


def test_a_killed_rollout_process_costs_no_episode(tmp_path: Path, model: Path) -> None:
    """Another comes, what the lost one was making is made again, and each prompt is trained once."""
    folder = tmp_path / "run"
    settings = ("steps=1000", "rollout.processes=2", "evaluation.every_steps=0")
    with live_run(command(folder, model, *settings), folder) as run:
        run.wait_for_step(3)
        run.worker("workflow").kill()
        run.wait_for_event("rollout_process_joined")
        run.wait_for_step(len(run.steps()) + 3)
        run.send(signal.SIGINT)
        code, output = run.wait()

        steps, summary = len(run.steps()), run.summary()
        assert code == 130, output
        assert "rollout process workflow/0 is lost, it is replaced" in output
        assert (summary["status"], summary["restarts"], summary["episodes_failed"]) == ("stopped", 0, 0)
        _nothing_left(run)
    _each_member_once(folder, steps)


def test_a_killed_controller_takes_everything_with_it(tmp_path: Path, model: Path) -> None:
    """Workers, reward processes and shared memory are gone by themselves."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, "steps=1000"), folder) as run:
        run.wait_for_step(3)
        run.worker("actor")
        run.send(signal.SIGKILL)
        run.wait()

        _nothing_left(run)


def test_a_killed_replica_costs_no_episode_while_another_serves(tmp_path: Path, model: Path) -> None:
    """`reference:d2` goes on with one replica, and every step is full."""
    folder = tmp_path / "run"
    settings = ("steps=12", "rollout.backend=reference:d2", "evaluation.every_steps=0", "rollout.max_replacements=0")
    words = command(folder, model, *settings)
    with live_run(words, folder) as run:
        run.wait_for_step(3)
        run.worker("rollout").kill()
        code, output = run.wait()

        assert code == 0, output
        assert [record["episodes"] for record in run.steps()] == [128] * 12
        assert run.summary()["status"] == "finished"
        assert "replica rollout/0 is out of service, it is not replaced" in output
        assert [e["worker"] for e in read_lines(folder / "events.jsonl") if e["kind"] == "replica_lost"] == [
            "rollout/0"
        ]


def test_ctrl_c_saves_and_resume_goes_on_to_the_same_end(tmp_path: Path, model: Path) -> None:
    """Every prompt is trained exactly once over both runs, and no step is counted twice."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, "steps=8", "evaluation.every_steps=0"), folder) as run:
        run.wait_for_step(3)
        run.send(signal.SIGINT)
        code, output = run.wait()

        assert code == 130, output
        assert f"areal train --resume {folder}" in output
        assert run.survivors() == []

    resume = [*command(folder, model)[:4], "--resume", str(folder)]
    with live_run(resume, folder) as run:
        code, output = run.wait()

        assert code == 0, output
        assert [record["step"] for record in run.steps()] == list(range(1, 9))
        assert run.summary()["episodes_trained"] == 8 * 128
        assert run.summary()["max_staleness_seen"] <= 2
        assert run.survivors() == []
    _each_member_once(folder, steps=8)


@pytest.mark.parametrize("background", ["false", "true"])
def test_kill_9_between_checkpoints_trains_every_prompt_exactly_once(
    tmp_path: Path, model: Path, background: str
) -> None:
    """What was trained after the last checkpoint is gone with its weights, and is trained again on resume."""
    folder = tmp_path / "run"
    saving = ("checkpoint.every_steps=2", f"checkpoint.background={background}")
    settings = ("steps=9", *saving, "evaluation.every_steps=0")
    with live_run(command(folder, model, *settings), folder) as run:
        run.wait_for_step(5)
        run.send(signal.SIGKILL)
        run.wait()
        assert run.survivors() == []

    with live_run([*command(folder, model)[:4], "--resume", str(folder)], folder) as run:
        code, output = run.wait()

        assert code == 0, output
        assert [record["step"] for record in run.steps()] == list(range(1, 10))
        assert run.summary()["max_staleness_seen"] <= 2
    _each_member_once(folder, steps=9)


def test_ctrl_c_before_the_first_step_says_whether_there_is_something_to_resume(tmp_path: Path, model: Path) -> None:
    """It ends at once, without an evaluation, and the folder can be used again."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, "steps=5"), folder) as run:
        run.wait_for_file("events.jsonl")
        run.send(signal.SIGINT)
        code, output = run.wait()

        assert code == 130, output
        assert "start the run again" in output or "--resume" in output
        begun = (folder / "loop.json").exists() or list(folder.glob("checkpoints/step-*"))
        assert ("--resume" in output) == bool(begun)
        assert run.survivors() == []
