"""How every process of a run grows over 5,000 steps: resident memory of the last fifth against the second.

The quickstart's own run, its processes looked at from outside four times a second: the controller, every worker, the
reward's. A process is named after the log it writes. The first fifth does not count: caches fill, allocators settle.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import frame
import psutil
import runs

from areal_core.loop.run_folder import RunFolder
from areal_tasks.quickstart.quickstart import preset_path

TASK, STEPS, PARTS, PERIOD_S = "spell", 5_000, 5, 0.25
TARGET = 1.1
Samples = dict[str, list[tuple[int, float]]]
"""Of every process: (step, mebibytes)."""


def label(process: psutil.Process, controller: int) -> str:
    """Return what to call a process, empty for one that only watches another."""
    if process.pid == controller:
        return "controller"
    if "rewards" in " ".join(process.cmdline()):
        return "reward" if process.ppid() == controller else ""
    log = Path(f"/proc/{process.pid}/fd/2").readlink()
    return log.stem if process.ppid() == controller and log.suffix == ".log" else ""


def steps_done(metrics: Path) -> int:
    """Return how many steps a run has recorded: the number of its lines."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def watch(command: Sequence[str], folder: Path) -> Samples:
    """Run a command and look at it and all it started until it ends."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("OMP_NUM_THREADS", None)
    log = folder.parent / "run.log"
    seen: Samples = defaultdict(list)
    names: dict[int, str] = {}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as run:
        controller = psutil.Process(run.pid)
        while run.poll() is None:
            time.sleep(PERIOD_S)
            done = steps_done(RunFolder(folder).metrics)
            for process in _family(controller):
                try:
                    name = names.setdefault(process.pid, label(process, run.pid))
                    if name and done:
                        seen[name].append((done, process.memory_info().rss / 2**20))
                except (psutil.Error, OSError):
                    names.pop(process.pid, None)  # it is gone, or just born
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n" + "\n".join(log.read_text().splitlines()[-20:]))
    return seen


def _family(controller: psutil.Process) -> Sequence[psutil.Process]:
    try:
        return [controller, *controller.children()]
    except psutil.Error:
        return []


def grown(samples: Sequence[tuple[int, float]], steps: int) -> tuple[float, float]:
    """Return the medians of the second and of the last part of the steps, in mebibytes."""
    part = steps / PARTS
    second = [size for step, size in samples if part <= step < 2 * part]
    last = [size for step, size in samples if steps - part <= step < steps]
    return statistics.median(second), statistics.median(last)


def main() -> int:
    """Make the run and compare."""
    parser = frame.parser(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    steps = 40 if options.quick else options.steps
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        model = runs.starting_model(TASK, Path(scratch), quick=options.quick)
        areal = str(Path(sys.executable).with_name("areal"))
        settings = [f"model.path={model}", f"out={folder}", f"steps={steps}"]
        settings += ["evaluation.every_steps=0", "evaluation.before=false"]
        seen = watch([areal, "train", str(preset_path(TASK)), *settings], folder)
    sizes = {name: grown(samples, steps) for name, samples in seen.items()}
    ratios = {name: last / second for name, (second, last) in sizes.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    result = frame.Result(
        name="memory",
        ratio=ratios[worst],
        target=TARGET,
        lower_is_better=True,
        what=f"resident memory of the process that grew most ({worst}), last fifth of {steps:,} steps / the second",
        details={
            "steps": steps,
            "mebibytes": {name: {"second_fifth": second, "last_fifth": last} for name, (second, last) in sizes.items()},
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
