"""The device in one file is planned, placed and certified, and told as a stand-in wherever somebody looks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import CapabilityError, ResourceError
from areal_core.contract.scheduler import Job
from areal_core.plugins.devices import accelerators, count_visible
from areal_core.plugins.registry import Registry
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.devices import DevicePool
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model

pytest.importorskip("areal_reference")

FILE = Path(__file__).parents[2] / "examples/device/paper.py"
BOTH = ("actor.backend=on_paper:d1", "rollout.backend=on_paper:d1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model folder; no test here loads it."""
    return make_spell_model(tmp_path_factory.mktemp("model"), seed=1)


def plan(model: Path, *overrides: str, sheets: int) -> Plan:
    """Plan the quickstart's preset with the file imported, on a machine with some sheets of paper."""
    registry = Registry()
    registry.add_file(FILE)
    config = load_config(preset_path("spell"), [f"model.path={model}", f"imports=[{FILE}]", *overrides])
    return make_plan(config, registry, count_visible(registry, {"PAPER_DEVICES": str(sheets)}))


def test_it_is_planned_and_told_as_a_stand_in(model: Path) -> None:
    """By the command a user types, which counts what the file brings."""
    words = ["train", str(preset_path("spell")), f"model.path={model}", f"imports=[{FILE}]", "device=paper", *BOTH]
    environ = {**os.environ, "PAPER_DEVICES": "4"}

    done = subprocess.run(
        [sys.executable, "-m", "areal_core.cli.main", *words, "--dry-run"], env=environ, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "1 paper" in done.stdout and "warning: paper is a stand-in. The CPU computed everything" in done.stdout


def test_a_stand_in_is_never_taken_unasked(model: Path) -> None:
    """`auto` looks for accelerators, and backends that only run on paper are refused on the cpu."""
    assert plan(model, "actor.backend=reference:d1", sheets=4).role("actor").device == "cpu"
    with pytest.raises(CapabilityError, match="does not run on cpu"):
        plan(model, *BOTH, sheets=4)
    with pytest.raises(ResourceError, match="needs 2 paper devices, 1 are here"):
        plan(model, *BOTH, "device=paper", sheets=1)


def test_workers_are_given_sheets_of_their_own(tmp_path: Path) -> None:
    """No two share one, and a worker on paper sees no GPU."""
    registry = Registry()
    registry.add_file(FILE)
    pool = DevicePool.of_machine(accelerators(registry), {"PAPER_DEVICES": "3"})
    job = Job(
        role="actor", engine_role="train", backend="on_paper", num_workers=2, device="paper", imports=(str(FILE),)
    )

    async def environments() -> list[dict[str, str]]:
        scheduler = LocalScheduler(LocalConfig(log_dir=str(tmp_path)), devices=pool)
        try:
            await scheduler.submit(job)
            pids = [status.pid for status in scheduler.poll("actor")]
            return [_environment(pid) for pid in pids if pid is not None]
        finally:
            await scheduler.close()

    first, second = asyncio.run(environments())

    assert (first["PAPER_VISIBLE_DEVICES"], second["PAPER_VISIBLE_DEVICES"]) == ("0", "1")
    assert first["CUDA_VISIBLE_DEVICES"] == first["ASCEND_RT_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    "words", [("--backend", "paper", "--role", "device"), ("--backend", "on_paper", "--role", "train")]
)
def test_it_is_certified_at_level_0(words: tuple[str, ...], tmp_path: Path) -> None:
    """The device, and a trainer on it; the report says what stands in."""
    command = ["conformance", "run", *words, "--device", "paper", "--level", "0", "--import", str(FILE)]

    done = subprocess.run(
        [sys.executable, "-m", "areal_core.cli.main", *command, "--report", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    report = json.loads((tmp_path / "report.json").read_text())

    assert (done.returncode, report["verdict"]) == (0, "success"), done.stdout + done.stderr
    assert report["subject"]["stand_ins"].startswith("The CPU computed everything")


def _environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
