"""Replicas with real servers: a server's processes or a worker are killed, replicas come and go, no episode is lost.

Needs the environments of the engines. `make test-vllm`, `make test-sglang`
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from areal_core.observe.jsonl import read_lines

from .live_run import LiveRun, command, live_run

PATIENCE_S = 600.0
"""Of a run whose servers take most of a minute to start on a quiet machine."""
PROMPTS, GROUP, STALENESS = 4, 4, 2
SETTINGS = (
    "steps=100000",
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    f"rollout.max_staleness={STALENESS}",
    "rollout.sampling.max_new_tokens=96",
    "rollout.sampling.ignore_eos=true",
    "rollout.options.kv_cache_gib=0.25",
    "evaluation.before=false",
    "evaluation.every_steps=0",
)
"""Episodes so long that the trainer waits for them: whoever is killed serves some at that moment."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
both_engines = pytest.mark.parametrize(
    "engine", [pytest.param("vllm", marks=pytest.mark.vllm), pytest.param("sglang", marks=pytest.mark.sglang)]
)


@both_engines
def test_a_killed_server_is_started_again_and_costs_no_episode(tmp_path: Path, model: Path, engine: str) -> None:
    """Every process of one of two servers is killed: its worker starts another, and no replica is lost."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, f"rollout.backend={engine}:d2", *SETTINGS), folder) as run:
        run.patience_s = PATIENCE_S
        run.wait_for_step(3)
        worker = run.worker("rollout")
        first = _watchdog(worker)
        for process in _server(worker):
            with contextlib.suppress(psutil.NoSuchProcess):  # the death of one may end others
                process.kill()
        run.wait_until(lambda: _watchdog(worker) not in (first, None), "another server")
        _train_on_and_stop(run)

        assert _fleet(run) == []
        assert f"the {engine} server ended with code 137" in (folder / "logs" / "rollout-0.log").read_text()
        _assert_no_episode_lost(run)


@both_engines
def test_a_killed_worker_is_replaced_and_its_server_goes_with_it(tmp_path: Path, model: Path, engine: str) -> None:
    """The other replica serves on, another worker with another server joins, and nothing is left of the first."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, f"rollout.backend={engine}:d2", *SETTINGS), folder) as run:
        run.patience_s = PATIENCE_S
        run.wait_for_step(3)
        worker = run.worker("rollout")
        server = _server(worker)
        worker.kill()
        run.wait_for_event("replica_joined")
        assert not [process for process in server if process.is_running()]
        _train_on_and_stop(run)

        assert _fleet(run) == [("replica_lost", "rollout/0"), ("replica_joined", "rollout.2/0")]
        _assert_no_episode_lost(run)


@pytest.mark.vllm
def test_a_replica_with_a_server_is_added_and_removed(tmp_path: Path, model: Path) -> None:
    """1 -> 2 -> 1 by command; the server of the one that left is gone while the run goes on."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, "rollout.backend=vllm:d1", *SETTINGS), folder) as run:
        run.patience_s = PATIENCE_S
        run.wait_for_step(1)
        assert "done; 2 serving" in _scaled(folder, 2)
        server = _server(run.worker("rollout.1"))
        run.wait_for_step(len(run.steps()) + 2)
        assert "done; 1 serving" in _scaled(folder, 1)
        assert not [process for process in server if process.is_running()]
        _train_on_and_stop(run)

        assert _fleet(run) == [("replica_joined", "rollout.1/0"), ("replica_removed", "rollout.1/0")]
        _assert_no_episode_lost(run)


@both_engines
def test_the_ranks_of_a_server_take_weights_from_the_trainers_group(tmp_path: Path, model: Path, engine: str) -> None:
    """`direct` with `collective`: vLLM's ranks join a group that is signed, SGLang's one as torch makes it."""
    folder = tmp_path / "run"
    streamed = ("rollout.options.direct=true", "weight_sync.transport=collective", "actor.optimizer.lr=0.001")
    words = command(folder, model, f"rollout.backend={engine}:d1", *SETTINGS, *streamed, "steps=4")
    with live_run(words, folder) as run:
        run.patience_s = PATIENCE_S
        code, output = run.wait()

        assert code == 0, output
        assert [step["version"] for step in run.steps()] == [1, 2, 3, 4]
        assert _fleet(run) == []


def _watchdog(worker: psutil.Process) -> psutil.Process | None:
    """Return the watchdog of a replica's server, None between two servers."""
    watchdogs = [child for child in worker.children() if any(word.endswith("watchdog.py") for word in _words(child))]
    assert len(watchdogs) <= 1, f"{worker} has {len(watchdogs)} servers"
    return watchdogs[0] if watchdogs else None


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it ended just now
        return []


def _server(worker: psutil.Process) -> list[psutil.Process]:
    """Return the processes of a replica's server, its watchdog left out."""
    watchdog = _watchdog(worker)
    found = watchdog.children(recursive=True) if watchdog else []
    assert found, f"{worker} has no server"
    return found


def _train_on_and_stop(run: LiveRun) -> None:
    """Go on for as many steps as an episode of this moment may wait, so that it is trained; then ask the run to end."""
    run.wait_for_step(len(run.steps()) + STALENESS + 1)
    run.send(signal.SIGINT)
    code, output = run.wait(PATIENCE_S)
    assert code == 130, output


def _fleet(run: LiveRun) -> list[tuple[str, str]]:
    return [(event["kind"], event["worker"]) for event in _events(run, "replica_")]


def _events(run: LiveRun, *kinds: str) -> list[dict[str, Any]]:  # Any: as written
    return [event for event in read_lines(run.folder / "events.jsonl") if event["kind"].startswith(kinds)]


def _assert_no_episode_lost(run: LiveRun) -> None:
    """Every step is full, every prompt is in one of them, none had to be begun again, and nothing is left behind."""
    steps = run.steps()
    assert {record["episodes"] for record in steps} == {PROMPTS * GROUP}
    assert run.summary()["status"] == "stopped"
    assert run.summary()["max_staleness_seen"] <= STALENESS
    assert _events(run, "episode_retried", "group_") == []
    handed_over = [event for event in _events(run, "batch_handed_over") if event["version"] < len(steps)]
    trained = [task for event in handed_over for task in event["task_ids"]]
    assert sorted(trained) == sorted(f"train/0/{row}" for row in range(PROMPTS * len(steps)))
    assert run.survivors() == []


def _scaled(folder: Path, replicas: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "areal_core.cli.main", "scale", str(folder), str(replicas), "--wait"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
