"""Weights through a process group instead of shared memory: the same run, and the same answer to a killed replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines

from .live_run import LiveRun, command, live_run

pytestmark = pytest.mark.slow

STREAM = ("weight_sync.transport=collective", "weight_sync.options.timeout_s=20", "evaluation.every_steps=0")


def _small(transport: str) -> tuple[str, ...]:
    return (
        "steps=4",
        "rollout.prompts_per_step=4",
        "rollout.group_size=4",
        "rollout.max_staleness=0",
        "rollout.options.deterministic=true",
        "rollout.backend=reference:d2",
        "evaluation.every_steps=0",
        f"weight_sync.transport={transport}",
    )


def test_a_streamed_run_is_the_stored_one_bit_for_bit(tmp_path: Path, model: Path) -> None:
    """Synchronous and deterministic, two ranks and two replicas: rewards and losses do not know the transport."""
    told: dict[str, list[tuple[float, float]]] = {}
    for transport in ("shm", "collective"):
        folder = tmp_path / transport
        with live_run(command(folder, model, *_small(transport)), folder) as run:
            code, output = run.wait()
        assert code == 0, output
        told[transport] = [(record["reward"], record["loss"]) for record in run.steps()]
        assert run.survivors() == []

    assert told["collective"] == told["shm"]
    assert len(told["shm"]) == 4


def test_a_replica_killed_under_a_stream_is_left_out(tmp_path: Path, model: Path) -> None:
    """The version is streamed to the one that is left, and every step is made."""
    folder = tmp_path / "run"
    words = command(folder, model, "steps=10", "rollout.backend=reference:d2", "rollout.max_replacements=0", *STREAM)
    with live_run(words, folder) as run:
        run.wait_for_step(3)
        run.worker("rollout").kill()
        code, output = run.wait()

        assert code == 0, output
        assert len(run.steps()) == 10
        assert _lost(run) == ["rollout/0"]
        assert run.summary()["weight_updates"] == 10
        assert run.survivors() == []


def _lost(run: LiveRun) -> list[str]:
    events = read_lines(run.folder / "events.jsonl")
    return [str(event["worker"]) for event in events if event["kind"] == "replica_lost"]
