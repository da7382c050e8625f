"""A sample of the enumeration; `python -m tests.exactly_once` runs all of it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from .__main__ import read_verdicts
from .enumeration import RESUMED, RESUMED_FROM_BEGINNING, STEPS, Case, Enumeration, Mode, Verdict
from .killed_run import CONTROLLER, CTRL_C, REPLICA, REWARD, TRAINER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLE = [
    Case(mode=Mode.SYNCHRONOUS, victim=CONTROLLER, boundary="step 3: answer actor train_step #1"),
    Case(mode=Mode.SYNCHRONOUS, victim=TRAINER, boundary="step 4: ask actor send_weights #1"),
    Case(mode=Mode.SYNCHRONOUS, victim=REWARD, boundary="step 2: ask rollout generate #3"),
    Case(mode=Mode.ASYNCHRONOUS, victim=CONTROLLER, boundary="step 2: ask actor save_state #1"),
    Case(mode=Mode.ASYNCHRONOUS, victim=REPLICA, boundary="step 3: answer rollout receive_weights #1"),
    Case(mode=Mode.ASYNCHRONOUS, victim=CONTROLLER, boundary="step 4: event batch_handed_over #1"),
    Case(mode=Mode.SYNCHRONOUS, victim=CONTROLLER, boundary="step 1: group #2"),
    Case(mode=Mode.ASYNCHRONOUS, victim=CONTROLLER, boundary="step 2: answer actor train_step #1"),
    Case(mode=Mode.SYNCHRONOUS, victim=CTRL_C, boundary="step 2: ask actor send_weights #1"),
]
"""Between training and weights, within an update, within a checkpoint, while episodes wait, before any checkpoint."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judge the sample by the command, in a process that has nothing of this one's."""
    folder = tmp_path_factory.mktemp("exactly_once")
    cases = [word for case in SAMPLE for word in ("--case", str(case))]
    command = [sys.executable, "-m", "tests.exactly_once", "--folder", str(folder), *cases]
    root = Path(__file__).resolve().parents[2]
    subprocess.run(command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    return folder


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_every_prompt_is_trained_once_whoever_is_killed_wherever(folder: Path, case: Case) -> None:
    """Each step is whole, bound and lengths are kept; a synchronous run has the bits of the one that nobody killed."""
    ends = case.victim in (CONTROLLER, CTRL_C)
    endings = (RESUMED, RESUMED_FROM_BEGINNING) if ends else ("went on",)

    verdict = read_verdicts(folder)[case]

    assert verdict in [Verdict(case=case, ending=ending) for ending in endings]


def _weights_zeroed(run: Path) -> None:
    path = run / "checkpoints" / f"step-{STEPS:06d}" / "model" / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    save_file({**tensors, name: torch.zeros_like(tensors[name])}, path)


def _step_lost(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))


def _fleet_lost(run: Path) -> None:
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps({"kind": "run_restarted", "version": 2, "kept": []}) + "\n")


def _changed(sql: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with closing(sqlite3.connect(run / "episodes.sqlite")) as database, database:
            database.execute(f"UPDATE episodes SET {sql} WHERE step = 2 AND task_index = 2 AND member = 0")

    return change


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_weights_zeroed, "other bits in "),
        (_step_lost, "steps recorded: [1, 2, 3]"),
        (_fleet_lost, "a fleet that served was started anew"),
        (_changed("output_tokens = output_tokens + 1"), "lengths of task 2, member 0: "),
        (_changed("oldest_version = 0"), "staleness [0, 1]"),
        (_changed("task_index = 0"), "trained other than once: {(2, 0): 1, (0, 0): 1}"),
        (_changed("fate = 'dropped'"), "episodes of each step: "),
    ],
    ids=["weights", "step", "fleet", "length", "staleness", "task", "lost"],
)
def test_a_fault_is_seen(folder: Path, tmp_path: Path, spoil: Callable[[Path], None], told: str) -> None:
    """The judge tells of other weights, steps that are not there, another length, a prompt trained twice or never."""
    enumeration = Enumeration(Mode.SYNCHRONOUS, folder / "model", folder / Mode.SYNCHRONOUS)
    run = shutil.copytree(enumeration.reference, tmp_path / "run")
    assert enumeration._faults(run) == []

    spoil(run)

    assert enumeration._faults(run)[0].startswith(told)
