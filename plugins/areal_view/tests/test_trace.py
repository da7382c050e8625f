"""`areal trace` writes what Perfetto reads, of any run there is."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from areal_core.contract.errors import RunFolderError, StorageError
from areal_view.trace import trace


def test_a_trace_has_every_part_and_every_episode(make_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Spans of the trainer in their order, counters, what happened, and each episode under its replica."""
    run = make_run("a")
    run.steps(1, 3)
    run.event("replica_lost", at=3.0, worker="rollout/1")
    run.episodes(2)

    assert trace(run.folder) == 0

    path = run.folder / "trace.json"
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    trains = [event for event in events if event["name"] == "trains"]
    assert set(names.values()) == {"controller", "trainer", "rollout/0", "rollout/1"}
    assert [event["args"]["of"] for event in trains] == ["step 1", "step 2", "step 3"]
    assert [event["dur"] for event in trains] == [pytest.approx(0.6e6)] * 3
    assert trains[1]["ts"] - trains[0]["ts"] == pytest.approx(2e6)
    assert sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events) == 8
    assert [event["args"]["worker"] for event in events if event["name"] == "replica_lost"] == ["rollout/1"]
    assert sum(event["ph"] == "C" and event["name"] == "reward" for event in events) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(path) in capsys.readouterr().out


def test_a_hostile_run_gives_a_trace_that_is_json(make_run: Any, tmp_path: Path) -> None:
    """Half a line, numbers without end, no store."""
    run = make_run("a")
    run.steps(1, 2)
    for name in ("metrics.jsonl", "events.jsonl"):
        with (run.folder / name).open("a") as file:
            file.write('{"step": 1e999, "time": 1e999, "seconds": 1, "kind": "x"}\n')
            file.write('{"step": 3, "time": 5, "seconds": NaN, "kind": "x", "more": [1e999]}\n{"time": 1')

    trace(run.folder, out=tmp_path / "out.json", episodes=False)

    assert json.loads((tmp_path / "out.json").read_text())["traceEvents"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path, make_run: Any) -> None:
    """So is a file that cannot be written."""
    with pytest.raises(RunFolderError, match="holds no run"):
        trace(tmp_path)
    with pytest.raises(StorageError, match="cannot be written"):
        trace(make_run("a").folder, out=tmp_path / "missing" / "out.json")
