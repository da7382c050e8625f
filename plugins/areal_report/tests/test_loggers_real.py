"""The loggers on the packages themselves, where they are installed: without an account, without the network.

pip install "areal-report[wandb,trackio]"; pytest plugins/areal_report/tests/test_loggers_real.py
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from areal_report.loggers import tracked
from areal_report.loggers.tracked import TrackedConfig, TrackedLogger, TrackioLogger, WandbLogger

ANSWER = "an answer nobody else gives"


@pytest.fixture(autouse=True)
def samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """One episode a step, as the store of episodes would give it."""

    def read(folder: Path, step: int, number: int) -> list[tuple[object, ...]]:
        return [(step, "train/0/1", 1.0, "2 + 2", ANSWER, "stop", 2)]

    monkeypatch.setattr(tracked, "extension", {"samples": read}.get)


def log(logger: TrackedLogger, folder: Path, first_step: int) -> None:
    """Send two steps and close, as a run does that begins after `first_step`."""
    logger.start("run", folder, {"seed": 1, "actor": {"backend": "reference:d1"}}, first_step)
    for step in (first_step + 1, first_step + 2):
        logger.log(step, {"reward": 0.25 * step, "train/entropy": 1.5})
    logger.close()


def test_wandb_keeps_a_run_and_its_resumption_offline(tmp_path: Path) -> None:
    """Both under the id in the run folder, with the metrics and a table of samples."""
    pytest.importorskip("wandb")
    config = TrackedConfig(samples=1, options={"mode": "offline"})

    log(WandbLogger(config), tmp_path, 0)
    known = (tmp_path / "wandb-id").read_text().strip()
    log(WandbLogger(config), tmp_path, 2)

    runs = [*tmp_path.glob(f"wandb/offline-run-*-{known}*/run-{known}*.wandb")]
    tables = [path.read_text() for path in tmp_path.glob("wandb/offline-run-*/files/media/table/*.table.json")]
    assert runs and all(b"train/entropy" in path.read_bytes() for path in runs)
    assert {path.name for path in tmp_path.glob("wandb/**/*.wandb")} == {path.name for path in runs}
    assert tables and all(ANSWER in table for table in tables)
    assert (tmp_path / "wandb-id").read_text().strip() == known


def test_trackio_keeps_a_run_and_its_resumption_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of one run in its database, each once, with their samples."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    config = TrackedConfig(project="p", samples=1)

    log(TrackioLogger(config), tmp_path, 0)
    log(TrackioLogger(config), tmp_path, 2)

    with sqlite3.connect(tmp_path / "trackio/p.db") as database:
        rows: list[Any] = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    logged = [(name, step, json.loads(metrics)) for name, step, metrics in rows]
    rewards = [(name, step, values["reward"]) for name, step, values in logged if "reward" in values]
    assert rewards == [("run", step, 0.25 * step) for step in (1, 2, 3, 4)]
    tables = [values["samples"]["_value"][0] for *_, values in logged if "samples" in values]
    assert [(row["step"], row["completion"]) for row in tables] == [(step, ANSWER) for step in (1, 2, 3, 4)]
