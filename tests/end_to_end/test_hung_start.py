"""Processes that hang while they import hold up nobody who presses Ctrl-C, and do not outlive the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines

from .live_run import LiveRun, command, live_run

pytestmark = pytest.mark.slow

HANG = """
import os, sys, time
from pathlib import Path

if {"areal_local.scheduler.worker_main", "areal_local.rewards.process_main"} & set(sys.orig_argv):
    Path(__file__).with_name(f"hung-{os.getpid()}").touch()
    while True:
        time.sleep(1000)
"""
USER_FILE = """
from areal_core.plugins.marks import reward

@reward("own")
def own(prompt, completion, completion_ids, stop_reason, row):
    return 1.0
"""


@contextmanager
def _all_hung(folder: Path, model: Path, file: str, *settings: str) -> Iterator[LiveRun]:
    """A run whose trainer, replica and reward process all hang while they import a file."""
    (folder / file).write_text(HANG + USER_FILE)
    if file == "user.py":
        settings = (*settings, f"imports=[{folder / file}]")
    with live_run(command(folder / "run", model, "steps=5", *settings), folder / "run") as run:
        run.wait_until(lambda: len(list(folder.glob("hung-*"))) == 3, "three processes that hang")
        yield run


@pytest.mark.parametrize("file", ["user.py", "sitecustomize.py"])
def test_ctrl_c_ends_a_run_that_waits_for_workers_hung_at_import(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Once is enough, for no step has to be finished: in a file of the user's, or before Python itself has begun."""
    if file == "sitecustomize.py":
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with _all_hung(tmp_path, model, file) as run:
        run.send(signal.SIGINT)
        code, output = run.wait(timeout_s=60.0)  # workers are asked first, and killed after 5 s

        assert code == 130, output
        assert "waiting for workers to start" in output
        assert "stopped before its beginning; start the run again" in output
        assert run.survivors() == []
        assert run.left_in_shared_memory() == []
    ended = [event for event in read_lines(run.folder / "events.jsonl") if event["kind"] == "run_ended"]
    assert [event["status"] for event in ended] == ["stopped"]


def test_a_second_ctrl_c_waits_for_no_worker_hung_at_import(tmp_path: Path, model: Path) -> None:
    """However patient the run is with workers: they are killed, and their sockets are gone."""
    with _all_hung(tmp_path, model, "user.py", "scheduler.options.stop_timeout_s=1000") as run:
        run.send(signal.SIGINT)
        log = run.folder / "logs" / "actor-0.log"
        run.wait_until(lambda: "asked to end" in log.read_text(), "the end of workers")
        run.send(signal.SIGINT)
        code, output = run.wait(timeout_s=60.0)

        assert code == 130, output
        assert run.survivors() == []
        assert run.left_in_shared_memory() == []
