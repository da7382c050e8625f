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


def small_run(folder: Path, model: Path, *settings: str, options: str = "") -> AbstractContextManager[LiveRun]:
    """Start the run in a folder, with other options of the inference engine."""
    own = SMALL.read_text()
    yaml = folder.with_suffix(".yaml")
    yaml.write_text(own.replace("options: {deterministic: true}", f"options: {options}") if options else own)
    words = [sys.executable, "-m", "areal_core.cli.main", "train", str(yaml), f"model.path={model}", f"out={folder}"]
    return live_run([*words, *(settings or SETTINGS)], folder)


def in_step(run: LiveRun, version: int) -> None:
    """Return as soon as the step that trains `version` has begun."""
    path = run.folder / "events.jsonl"
    begun = ("batch_handed_over", version)
    run.wait_until(lambda: begun in [(e["kind"], e.get("version")) for e in read_lines(path)], f"batch {version}")


def started(run: LiveRun, role: str) -> int:
    """Return how many processes the first rank of a role has been."""
    return (run.folder / "logs" / f"{role}-0.log").read_text().count("areal.worker: ready, process")


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
        run.worker("actor", 1).kill()
        code, output = run.watch(300)

        assert code == 0, output
        assert [started(run, role) for role in ("actor", "rollout", "rollout.1")] == [2, 1, 1]
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


@pytest.mark.parametrize(
    "engine", [pytest.param("vllm", marks=pytest.mark.vllm), pytest.param("sglang", marks=pytest.mark.sglang)]
)
def test_a_server_goes_back_to_an_older_version(tmp_path: Path, model: Path, engine: str) -> None:
    """It serves the weights of the checkpoint to prompts it has cached, as the trainer's own log-probs say."""
    saving = ("steps=6", "checkpoint.every_steps=2", "rollout.max_staleness=0", "actor.optimizer.lr=0.01")
    served = (f"rollout.backend={engine}:d1", "evaluation.before=false")
    with small_run(tmp_path / "run", model, *saving, *served, options="{kv_cache_gib: 0.25}") as run:
        run.patience_s = 600.0
        in_step(run, 5)
        run.worker("actor").kill()
        code, output = run.watch(300)

        assert code == 0, output
        assert [started(run, role) for role in ("actor", "rollout")] == [2, 1]
        assert "starting again from step-000004, restart 1 of 4; replicas kept: 1" in output
        gaps = {record["version"]: record["train/engine_gap"] for record in run.steps()}
        assert sorted(gaps) == list(range(1, 7)) and max(gaps.values()) < 1e-3, gaps
        assert len({fingerprint for _, fingerprint in weights(run)}) == 6
