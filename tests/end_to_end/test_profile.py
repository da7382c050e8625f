"""`profile:` of a yaml, in a run whose workers are processes: traces of every worker, in the steps asked for."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import default_registry

from .one_process import FILE

pytest.importorskip("areal_reference")


def test_a_step_that_the_run_does_not_have_is_refused_by_the_plan(model: Path) -> None:
    """Before a worker is started, with the steps there are."""
    config = load_config(FILE, [f"model.path={model}", "profile.steps=[2,5]"])

    with pytest.raises(ConfigError, match="the run has the steps 1 to 4") as refused:
        make_plan(config, default_registry(), {})

    assert "profile.steps names step 5" in str(refused.value)


@pytest.mark.slow
def test_every_worker_of_a_run_writes_its_trace(tmp_path: Path, model: Path) -> None:
    """Trainer and generator, of step 2 and no other; terminal and report say where."""
    folder = tmp_path / "run"
    settings = (f"model.path={model}", f"out={folder}", "profile.steps=[2]", "steps=3", "checkpoint.every_steps=0")

    command = [sys.executable, "-m", "areal_core.cli.main", "train", str(FILE), *settings]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)

    traces = sorted(path for path in (folder / "profile").rglob("*") if path.is_file())
    assert [str(path.relative_to(folder / "profile")) for path in traces] == [
        "step-2/actor-rank0-weights.json.gz",
        "step-2/actor-rank0.json.gz",
        "step-2/rollout-rank0.json.gz",
    ]
    for path, name in zip(traces[1:], ("areal: train_step", "areal: token"), strict=True):
        with gzip.open(path, "rt") as file:
            assert name in {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "step 2 was traced" in shown.stdout + shown.stderr
    assert "profile/step-2/actor-rank0.json.gz" in (folder / "report.html").read_text()
