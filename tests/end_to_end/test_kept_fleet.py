"""A trainer's rank is killed: its replicas serve on, and the run ends with the bits of one that nobody disturbed."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines

from .live_run import LiveRun, live_run, trained_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, PROMPTS = 4, 2
SMALL = Path(__file__).resolve().parents[1] / "exactly_once" / "run.yaml"
SETTINGS = (
    *(f"steps={STEPS}", "rollout.max_staleness=0", "deterministic=true", "checkpoint.every_steps=2"),
    *("actor.backend=fsdp:d2", "rollout.backend=reference:d2", "evaluation.before=false"),
)
"""Every step changes the weights; every second is saved. The optimizer's state is cut over two ranks."""


def small_run(folder: Path, model: Path) -> AbstractContextManager[LiveRun]:
    """Start the run in a folder."""
    words = [sys.executable, "-m", "areal_core.cli.main", "train", str(SMALL), f"model.path={model}", f"out={folder}"]
    return live_run([*words, *SETTINGS], folder)


def in_step(run: LiveRun, version: int) -> None:
    """Return as soon as the step that trains `version` has begun."""
    path = run.folder / "events.jsonl"
    begun = ("batch_handed_over", version)
    run.wait_until(lambda: begun in [(e["kind"], e.get("version")) for e in read_lines(path)], f"batch {version}")


def weights(run: LiveRun) -> list[tuple[int, str]]:
    """Return each step in order, and the fingerprint of the weights it sent."""
    return [(record["version"], record["weights"]) for record in run.steps()]


def test_the_fleet_outlives_its_trainers(tmp_path: Path, model: Path) -> None:
    """One rank of two is killed in the step after the checkpoint: the fleet goes back to version 2, and on from it."""
    with small_run(tmp_path / "whole", model) as whole:
        code, output = whole.watch(300)
        assert code == 0, output
    with small_run(tmp_path / "run", model) as run:
        in_step(run, STEPS - 1)
        replicas = {role: run.worker(role).pid for role in ("rollout", "rollout.1")}
        run.worker("actor", 1).kill()
        run.wait_until(lambda: len(run.steps()) == STEPS, "the last step")
        assert {role: run.worker(role).pid for role in replicas} == replicas
        code, output = run.watch(300)

        assert code == 0, output
        assert "starting again from step-000002, restart 1 of 4; replicas kept: 2" in output
        events = list(read_lines(run.folder / "events.jsonl"))
        kept = [(event["version"], event["kept"]) for event in events if event["kind"] == "run_restarted"]
        assert kept == [(2, ["rollout/0", "rollout.1/0"])]
        assert not [event for event in events if event["kind"] in ("replica_lost", "replica_joined")]
        assert weights(run) == weights(whole)
        assert len({fingerprint for _, fingerprint in weights(run)}) == STEPS
        saved = Path("checkpoints") / f"step-{STEPS:06d}" / "model" / "model.safetensors"
        assert (run.folder / saved).read_bytes() == (whole.folder / saved).read_bytes()
        assert run.survivors() == [] and run.left_in_shared_memory() == []
    trained = [trained_tasks(each.folder, STEPS - 1) for each in (whole, run)]
    assert trained[0] == trained[1] and len({*trained[0]}) == STEPS * PROMPTS
