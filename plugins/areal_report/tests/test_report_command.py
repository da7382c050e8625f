"""`areal report RUN`: a page of a run that goes on, ended, failed at once, or is years old."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_core.cli.main import main, plugin_commands
from areal_core.loop.run_folder import RunFolder
from areal_report.run_report import REPORT

Records = list[dict[str, Any]]
WriteStore = Callable[[Path, Sequence[dict[str, Any]]], None]


def write_run(folder: Path, records: Records, events: Records) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in (("metrics.jsonl", records), ("events.jsonl", events)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path: Path, records: Records, events: Records, write_store: WriteStore) -> Path:
    """A whole run with a store."""
    write_run(tmp_path / "run", records, events)
    write_store(tmp_path / "run", [{"answer": "drawkcab", "reward": 1.0}])
    return tmp_path / "run"


def test_the_page_is_made_anew_from_the_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Page and picture, with completions; the summary is the run's own and stays. The path is all that is printed."""
    assert main(["report", str(run)]) == 0

    page = (run / "report.html").read_text()
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert "<h1>spell</h1>" in page and "drawkcab" in page and "finished" in page and "role    backend" in page
    assert (run / "reward.png").exists() and not (run / "summary.json").exists()


def test_what_was_lost_stands_under_the_curve(tmp_path: Path, records: Records, events: Records) -> None:
    """Over all resumes; a run whose events name no prompts says nothing of them."""
    batches = [
        {"time": 1002.0, "kind": "batch_handed_over", "version": version, "task_ids": [f"train/0/{version}"]}
        for version in (0, 1, 2)
    ]
    resumed = {**events[0], "version": 1}
    write_run(tmp_path / "run", records, [*events[:1], *batches, resumed, *batches[1:], *events[2:]])
    write_run(tmp_path / "odd", records, [*events[:1], {**batches[0], "task_ids": ["a"]}])

    last = [REPORT.closing(RunFolder(tmp_path / name)).splitlines()[-4] for name in ("run", "odd")]

    assert last == ["prompts lost 0, trained twice 0, episodes failed 0, restarts 1", "episodes failed 0, restarts 0"]


def test_a_live_run_is_running_and_its_torn_last_lines_wait(run: Path, events: Records) -> None:
    """Whoever holds the folder goes on; a line being written is not read yet, nothing is waited for."""
    (run / "events.jsonl").write_text(json.dumps(events[0]) + '\n{"time": 1001.0, "ki')
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 101, "rew')

    with (run / ".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["report", str(run)]) == 0

    page = (run / "report.html").read_text()
    assert "status running" in page and "100 of 100" in page and "What ended it" not in page


def test_an_old_folder_without_store_plan_or_fleet_clock_has_a_page(
    tmp_path: Path, records: Records, events: Records
) -> None:
    """Named after its configuration, or its folder."""
    old = [{name: value for name, value in record.items() if name != "infer_wall_s"} for record in records]
    began = {name: value for name, value in events[0].items() if name not in ("name", "steps", "plan")}
    write_run(tmp_path / "nested", old, [began, *events[1:]])

    assert main(["report", str(tmp_path / "nested")]) == 0
    first = (tmp_path / "nested" / "report.html").read_text()
    (tmp_path / "nested" / "config.yaml").write_text("seed: 1\nname: older\n")
    assert main(["report", str(tmp_path / "nested")]) == 0

    assert "<h1>nested</h1>" in first and "Idle share" in first and "Completions" not in first
    assert "<h1>older</h1>" in (tmp_path / "nested" / "report.html").read_text()


def test_a_run_that_failed_before_its_first_step_has_a_page(tmp_path: Path, events: Records) -> None:
    """There is no metrics.jsonl and no picture."""
    run = tmp_path / "run"
    write_run(
        run, [], [events[0], {"time": 1000.2, "kind": "run_ended", "status": "failed", "error": "ValueError: no"}]
    )
    (run / "metrics.jsonl").unlink()

    assert main(["report", str(run)]) == 0
    assert "ValueError: no" in (run / "report.html").read_text()
    assert not (run / "reward.png").exists()


def test_the_page_can_go_elsewhere(run: Path, tmp_path: Path) -> None:
    """The run's folder, somebody else's perhaps, is not touched."""
    before = sorted(run.iterdir())

    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0

    assert "drawkcab" in (tmp_path / "page.html").read_text()
    assert [path for path in sorted(run.iterdir()) if "sqlite-" not in path.name] == before


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_a_run_is_told(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to name instead."""
    monkeypatch.chdir(tmp_path)

    assert main(["report", folder]) == 2
    assert f"RunFolderError: {folder} holds no run" in capsys.readouterr().err


def test_help_and_the_start_of_a_run_draw_nothing() -> None:
    """Neither the list of commands nor the extension imports what draws."""
    assert "report" in plugin_commands()
    code = (
        "import sys; from areal_core.cli.main import plugin_commands; plugin_commands()\n"
        "from areal_core.plugins.extensions import extension; extension('report')\n"
        "print(sorted({'vl_convert', 'torch', 'matplotlib', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    assert done.stdout.strip() == "[]"
