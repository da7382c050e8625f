"""The processes of a run as one sees them from outside: controller, workers, the reward's.

Knows: which process is which (a worker is named after the log it writes), and how many steps the run has recorded.
Does not know: what else is read of a process, or what becomes of it.
"""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import runs

from areal_core.loop.run_folder import RunFolder
from areal_tasks.quickstart.quickstart import preset_path

CONTROLLER = "controller"
Read = TypeVar("Read")


def train(
    task: str,
    model: Path,
    folder: Path,
    overrides: Sequence[str],
    read: Callable[[psutil.Process], Read],
    *,
    every_s: float,
) -> dict[str, list[tuple[int, Read]]]:
    """Train a quickstart preset without evaluations and read of every process until the run ends.

    Returns, of every process, (steps recorded, what was read) in the order of time.

    Raises:
        SystemExit: the run failed; its last lines are shown.
    """
    return _watch(runs.train_command(preset_path(task), model, folder, overrides), folder, read, every_s)


def processor_seconds(process: psutil.Process) -> float:
    """Return what all threads of a process have used so far: something to read."""
    times = process.cpu_times()
    return times.user + times.system


def _label(process: psutil.Process, controller: int) -> str:
    """Return what to call a process, empty for one that only watches another."""
    if process.pid == controller:
        return CONTROLLER
    if "rewards" in " ".join(process.cmdline()):
        return "reward" if process.ppid() == controller else ""
    log = Path(f"/proc/{process.pid}/fd/2").readlink()
    return log.stem if log.parent.name == "logs" else ""


def _steps_done(metrics: Path) -> int:
    """Return how many steps a run has recorded: the number of its lines."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _watch(
    command: Sequence[str], folder: Path, read: Callable[[psutil.Process], Read], every_s: float
) -> dict[str, list[tuple[int, Read]]]:
    log = folder.parent / "run.log"
    seen: dict[str, list[tuple[int, Read]]] = defaultdict(list)
    names: dict[int, str] = {}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=runs.environment()) as run:
        controller = psutil.Process(run.pid)
        while run.poll() is None:
            time.sleep(every_s)
            done = _steps_done(RunFolder(folder).metrics)
            for process in _family(controller) if done else ():
                try:
                    # one that was just born has its parent's log yet
                    if name := names.get(process.pid) or _label(process, run.pid):
                        names[process.pid] = name
                        seen[name].append((done, read(process)))
                except (psutil.Error, OSError):
                    continue  # it is gone
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n" + "\n".join(log.read_text().splitlines()[-20:]))
    return seen


def _family(controller: psutil.Process) -> Sequence[psutil.Process]:
    try:
        return [controller, *controller.children()]
    except psutil.Error:
        return []
