"""A real `areal train` in processes of its own, watched from outside."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from attrs import define, field

from areal_core.loop.checkpoint import read_progress
from areal_core.observe.jsonl import read_lines
from areal_tasks.quickstart.quickstart import preset_path

PATIENCE_S = 400.0
"""A deadline for a run on a busy machine, never a measure of speed."""


@define
class LiveRun:
    """One run and every process it ever had."""

    folder: Path
    process: subprocess.Popen[str]
    processes: set[psutil.Process] = field(factory=set)
    patience_s: float = PATIENCE_S
    """How long one thing may take to come."""

    def wait_for_step(self, step: int) -> None:
        """Return once the run has finished a step; fail if it ends before or takes for ever."""
        self.wait_until(lambda: len(self.steps()) >= step, f"step {step}")

    def wait_for_file(self, name: str) -> None:
        """Return once the run folder has a file."""
        self.wait_until((self.folder / name).exists, name)

    def wait_for_event(self, kind: str) -> None:
        """Return once events.jsonl has an event of a kind."""
        path = self.folder / "events.jsonl"
        self.wait_until(lambda: any(event["kind"] == kind for event in read_lines(path)), kind)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once the condition holds; fail if the run ends before or it takes for ever."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            self._look()
            if self.process.poll() is not None:
                output = self.process.stdout.read() if self.process.stdout else ""
                raise AssertionError(f"the run ended before {what}:\n{output}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come within {self.patience_s:g} s")
            time.sleep(0.02)  # between looks at another process's file; nothing is assumed of its length

    def steps(self) -> list[dict[str, Any]]:
        """Return the complete lines of metrics.jsonl. Any: numbers and small mappings."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def summary(self) -> dict[str, Any]:
        """Return summary.json. Any: as written."""
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    def worker(self, role: str, rank: int = 0) -> psutil.Process:
        """Return a worker process of a role, the first by default: the controller's child that writes its log."""
        log = str(self.folder / "logs" / f"{role}-{rank}.log")
        self._look()
        for child in self.processes:
            try:
                written = {str(Path(f"/proc/{child.pid}/fd/{fd}").resolve()) for fd in (1, 2)}
                if log in written and child.ppid() == self.process.pid:
                    return child
            except (OSError, psutil.Error):
                continue
        raise AssertionError(f"no process of {role} among {sorted(p.pid for p in self.processes)}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the controller."""
        self._look()
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
        """Wait for the controller to end; return its exit code and all it printed."""
        self._look()
        output, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output

    def watch(self, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
        """Wait as `wait` does, and remember every process the run starts meanwhile."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._look()
            with suppress(subprocess.TimeoutExpired):  # and look again; what was printed so far is not lost
                return self.wait(timeout_s=0.05)
        return self.wait(timeout_s=1.0)

    def survivors(self, within_s: float = 10.0) -> list[psutil.Process]:
        """Return processes of the run that still live after `within_s` seconds."""
        _, alive = psutil.wait_procs(self.processes, timeout=within_s)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def left_in_shared_memory(self) -> list[str]:
        """Return the names in /dev/shm that processes of this run made: they carry the process id, whole."""
        mine = {self.process.pid, *(process.pid for process in self.processes)}
        there = Path("/dev/shm").iterdir() if Path("/dev/shm").is_dir() else ()
        return [
            path.name
            for path in there
            if mine.intersection(map(int, re.findall(r"(?<![^\W_])\d+(?![^\W_])", path.name)))
        ]

    def _look(self) -> None:
        try:
            controller = psutil.Process(self.process.pid)
            self.processes.update(controller.children(recursive=True))
        except psutil.NoSuchProcess:
            return


def trained_tasks(folder: Path, last_version: int) -> list[str]:
    """Return the prompts of every batch; a batch handed over but not trained before the end is handed over again."""
    batches = {
        event["version"]: event["task_ids"]
        for event in read_lines(folder / "events.jsonl")
        if event["kind"] == "batch_handed_over" and event["version"] <= last_version
    }
    return [task for version in sorted(batches) for task in batches[version]]


def trained_once(folder: Path, *, steps: int, prompts: int, max_staleness: int = 2) -> list[int]:
    """Return the tasks that a run trained, each once: those that its last checkpoint says are done with.

    An asynchronous run trains what is finished first. It may end with a task left out that it had begun, and one
    after it trained in its place; but none that it began long before its end, and none from beyond what it may begin.
    """
    tasks = read_progress(max(folder.glob("checkpoints/step-*"))).tasks["tasks"]
    used = [*range(tasks["frontier"]), *tasks["used"]]
    assert (len(used), tasks["failed"]) == (steps * prompts, [])
    assert (
        set(range((steps - max_staleness - 2) * prompts)) <= set(used) <= set(range((steps + max_staleness) * prompts))
    )
    assert sorted(trained_tasks(folder, last_version=steps - 1)) == sorted(f"train/0/{task}" for task in used)
    return used


def command(folder: Path, model: Path, *overrides: str, preset: str = "spell") -> list[str]:
    """Return the command line of a run on a preset."""
    words = [sys.executable, "-m", "areal_core.cli.main", "train", str(preset_path(preset))]
    return [*words, f"model.path={model}", f"out={folder}", "evaluation.max_prompts=16", *overrides]


@contextmanager
def live_run(words: Sequence[str], folder: Path) -> Iterator[LiveRun]:
    """Start a run; whatever the test does, nothing of it is left afterwards."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run = LiveRun(folder=folder, process=process)
    try:
        yield run
    finally:
        run._look()
        for survivor in [psutil.Process(process.pid), *run.processes] if process.poll() is None else run.processes:
            try:
                survivor.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()
        if process.stdout:
            process.stdout.close()
