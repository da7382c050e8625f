"""Replicas of a live run are killed, added and removed: no episode is lost, nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_core.observe.jsonl import read_lines

from .live_run import PATIENCE_S, LiveRun, command, live_run, trained_once

pytestmark = pytest.mark.slow


def _fleet_events(folder: Path, kind: str = "replica_") -> list[dict[str, Any]]:  # Any: as written
    """Return who was lost, joined and left; that an update went on without one that died in it is no such event."""
    found = [event for event in read_lines(folder / "events.jsonl") if event["kind"].startswith(kind)]
    return [event for event in found if event["kind"] != "replica_excluded"]


def _assert_every_prompt_trained_once(run: LiveRun) -> None:
    """Every step is full, no staler than allowed, and no prompt is in two of them."""
    assert {record["episodes"] for record in run.steps()} == {128}
    assert run.summary()["max_staleness_seen"] <= 2
    trained_once(run.folder, steps=len(run.steps()), prompts=16)


def test_the_only_replica_is_killed_and_the_run_goes_on(tmp_path: Path, model: Path) -> None:
    """A replacement is made, given the version of the moment, and every prompt is trained once."""
    folder = tmp_path / "run"
    words = command(folder, model, "steps=12", "evaluation.every_steps=0")
    with live_run(words, folder) as run:
        run.wait_for_step(3)
        run.worker("rollout").kill()
        code, output = run.wait()

        assert code == 0, output
        lost, joined = _fleet_events(folder)
        assert (lost["kind"], lost["worker"], lost["replaced"]) == ("replica_lost", "rollout/0", True)
        assert (joined["kind"], joined["worker"], joined["replicas"]) == ("replica_joined", "rollout.1/0", 1)
        assert joined["version"] >= 3
        assert "replica rollout/0 is out of service, a replacement is starting" in output
        assert f"replica rollout.1/0 serves from version {joined['version']} on" in output
        _assert_every_prompt_trained_once(run)
        assert run.survivors() == []


def test_the_only_replica_is_stopped_and_the_run_goes_on(tmp_path: Path, model: Path) -> None:
    """Its requests wait for the replacement when it is silent for too long: SIGSTOP costs no episode."""
    folder = tmp_path / "run"
    small = ("rollout.prompts_per_step=4", "rollout.group_size=2", "actor.backend=reference:d1", "evaluation.data=null")
    impatient = ("scheduler.heartbeat_timeout_s=3", "scheduler.options.stop_timeout_s=1")
    with live_run(command(folder, model, "steps=40", *small, *impatient), folder) as run:
        run.patience_s = 2 * PATIENCE_S  # two starts of a worker, and the end of one that does not answer
        run.wait_for_step(3)
        run.worker("rollout").send_signal(signal.SIGSTOP)
        code, output = run.watch(timeout_s=run.patience_s)

        assert code == 0, output
        lost, joined = _fleet_events(folder)
        assert (lost["kind"], lost["worker"], lost["replaced"]) == ("replica_lost", "rollout/0", True)
        assert "stopped responding" in lost["error"]
        assert (joined["kind"], joined["worker"], joined["replicas"]) == ("replica_joined", "rollout.1/0", 1)
        assert [record["episodes"] for record in run.steps()] == [8] * 40
        trained_once(folder, steps=40, prompts=4)
        summary = run.summary()
        lost_and_failed = [summary[name] for name in ("prompts_lost", "prompts_twice", "episodes_failed")]
        assert (summary["status"], lost_and_failed) == ("finished", [0, 0, 0])
        assert run.survivors() == []
        assert run.left_in_shared_memory() == []


def test_one_of_two_is_killed_and_replaced_while_the_other_serves(tmp_path: Path, model: Path) -> None:
    """The run never waits; the replacement joins at an update, and the run ends with two."""
    folder = tmp_path / "run"
    words = command(folder, model, "steps=1000", "rollout.backend=reference:d2", "evaluation.every_steps=0")
    with live_run(words, folder) as run:
        run.wait_for_step(3)
        run.worker("rollout").kill()
        run.wait_for_event("replica_joined")
        run.wait_for_step(len(run.steps()) + 2)
        run.send(signal.SIGINT)
        code, output = run.wait()

        assert code == 130, output
        kinds = [(event["kind"], event["worker"]) for event in _fleet_events(folder)]
        assert kinds == [("replica_lost", "rollout/0"), ("replica_joined", "rollout.2/0")]
        assert _fleet_events(folder)[-1]["replicas"] == 2
        _assert_every_prompt_trained_once(run)
        assert run.survivors() == []


def test_a_live_run_is_scaled_up_and_down(tmp_path: Path, model: Path) -> None:
    """1 -> 3 -> 1 by command; the processes that left are gone while the run goes on."""
    folder = tmp_path / "run"
    words = command(folder, model, "steps=100000", "evaluation.every_steps=0", "evaluation.before=false")
    with live_run(words, folder) as run:
        run.wait_for_step(1)
        grown = _scale(folder, "3", "--wait")
        assert grown.returncode == 0, grown.stderr
        assert "done; 3 serving" in grown.stdout
        added = [run.worker(f"rollout.{number}") for number in (1, 2)]
        run.wait_for_step(len(run.steps()) + 2)

        shrunk = _scale(folder, "1", "--wait")
        assert "done; 1 serving" in shrunk.stdout, shrunk.stderr
        assert not any(process.is_running() for process in added)
        run.wait_for_step(len(run.steps()) + 2)
        refused = _scale(folder, "0")
        assert (refused.returncode, "at least one must serve" in refused.stderr) == (2, True)
        run.send(signal.SIGINT)
        code, output = run.wait()

        assert code == 130, output
        kinds = [event["kind"] for event in _fleet_events(folder)]
        assert kinds == ["replica_joined"] * 2 + ["replica_removed"] * 2
        _assert_every_prompt_trained_once(run)
        assert run.survivors() == []
    assert _scale(folder, "2").returncode == 2, "the run is over"


def _scale(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "areal_core.cli.main", "scale", str(folder), *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
