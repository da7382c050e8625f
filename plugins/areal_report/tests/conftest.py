"""A run that never happened, with records, events and episodes as a run writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Records = list[dict[str, Any]]
WriteStore = Callable[[Path, Sequence[dict[str, Any]]], None]


def make_records(steps: int, seed: int = 1) -> Records:
    """Return `steps` records: reward rises, 0.8 s a step, the trainer is busy for 0.4 s of it, the replicas for 0.6."""
    random_numbers = random.Random(seed)
    records = []
    for step in range(1, steps + 1):
        lag = min(2, step - 1)
        records.append(
            {
                "step": step,
                "version": step,
                "seconds": 0.8,
                "wall_s": 0.8 * step,
                "reward": 0.9 / (1 + math.exp(-(step - steps / 2.5) / (steps / 12))) + random_numbers.gauss(0, 0.04),
                "loss": 0.2 * math.exp(-step / steps) + random_numbers.gauss(0, 0.02),
                "grad_norm": 1 + random_numbers.random(),
                "lr": 1e-3,
                "stepped": True,
                "episodes": 128,
                "tokens_trained": 3000 * step,
                "tokens_generated": 3600 * step,
                "train_busy_s": 0.4 * step,
                "infer_busy_s": 0.6 * step,
                "infer_wall_s": 0.8 * step,
                "train/entropy": 1.0 - step / steps / 2,
                "train/approx_kl_k3": 0.001,
                "train/clip_fraction": 0.1,
                "train/clip_fraction_low": 0.04,
                "train/logprob_gap_abs": 0.01,
                "train/engine_gap": 0.002,
                "train/response_length": 12.0,
                "train/response_length_min": 3.0,
                "train/response_length_max": 32.0,
                "train/groups_without_signal": 0.25,
                "staleness_mean": lag * 0.7,
                "staleness_max": lag,
                "staleness_histogram": {str(k): 128 // (lag + 1) for k in range(lag + 1)},
                "wait_s": 0.25 + 0.1 * random_numbers.random(),
                "train_s": 0.4,
                "sync_s": 0.02,
                "in_flight": 40 + random_numbers.randint(-5, 5),
                "buffered": random_numbers.randint(0, 16),
                "failed": 0,
                **({"eval_reward": min(1.0, step / steps * 0.95)} if step % max(1, steps // 5) == 0 else {}),
            }
        )
    return records


def _write_store(folder: Path, episodes: Sequence[dict[str, Any]]) -> None:
    """Write an episode store: each of `episodes` is a trained one, with whatever else it says."""
    from areal_episodes import schema

    store = schema.create(folder / schema.FILE)
    for number, episode in enumerate(episodes):
        task, step = f"train/0/{number}", episode.get("step", 1)
        turns = [
            {"role": "given", "text": episode.get("prompt", "p")},
            {"role": "generated", "text": episode["answer"]},
        ]
        row: dict[str, Any] = {
            **dict.fromkeys(schema.COLUMNS, 0),
            **dict.fromkeys(("reward_status", "replica", "error", "parts"), ""),
            "kind": "train",
            "outcome": "finished",
            "fate": "trained",
            "task_id": task,
            "task_index": number,
            "version": step - 1,
            "stop": "stop",
            "parts": "{}",
            "output_tokens": len(episode["answer"]),
            **{name: value for name, value in episode.items() if name in schema.COLUMNS},
            "text": json.dumps([turns]),
        }
        store.execute("INSERT OR REPLACE INTO tasks VALUES (?, '{}')", (row["task_id"],))
        store.execute(schema.INSERT, [row[name] for name in schema.COLUMNS])
        store.execute("UPDATE episodes SET step = ? WHERE id = last_insert_rowid()", (step,))
    store.close()


@pytest.fixture
def write_store() -> WriteStore:
    """Return what writes a store of episodes into a folder."""
    pytest.importorskip("areal_episodes")
    return _write_store


@pytest.fixture
def records() -> Records:
    """A hundred steps."""
    return make_records(100)


@pytest.fixture
def events() -> Records:
    """What such a run says besides."""
    return [
        {
            "time": 1000.0,
            "kind": "run_started",
            "name": "spell",
            "steps": 100,
            "plan": "role    backend",
            "max_staleness": 2,
            "train_backend": "fsdp:d1",
            "infer_backend": "x:d1",
        },
        {"time": 1001.0, "kind": "evaluated", "version": 0, "reward": 0.02},
        {"time": 1040.0, "kind": "episode_failed", "error": "RewardFailed: <b>nan</b>\n  at step 3"},
        {"time": 1080.0, "kind": "run_ended", "status": "finished"},
    ]
