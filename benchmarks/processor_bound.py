"""How near a run comes to the bound of its cores: the seconds its processes compute, spread over all cores.

Tasks A and B: the processor time of controller, workers and rewards between two steps, divided by the cores and by the
wall-clock between them. 1 means that no core is ever free: only less work would make the run faster.
The start, the first fifth of the steps and the end do not count.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import family
import frame
import psutil
import runs

STEPS, PERIOD_S = {"spell": 150, "long_spell": 100}, 0.05
Reading = tuple[float, float]
"""(moment, processor time), in seconds."""


def _now(process: psutil.Process) -> Reading:
    return time.perf_counter(), family.processor_seconds(process)


def cores_used(seen: Mapping[str, Sequence[tuple[int, Reading]]], steps: int) -> dict[str, float]:
    """Return how many cores each process kept busy between a fifth of the steps and the last."""
    used = {}
    for name, samples in seen.items():
        counted = [reading for step, reading in samples if steps / 5 <= step < steps]
        if len(counted) > 1:  # what is left out had not begun, or had ended
            (began, before), (ended, after) = counted[0], counted[-1]
            used[name] = (after - before) / (ended - began)
    return used


def main() -> int:
    """Measure both tasks."""
    parser = frame.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(STEPS), choices=list(STEPS))
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        for task in options.tasks:
            steps, repeats = (30, 1) if options.quick else (STEPS[task], options.repeats)
            model = runs.starting_model(task, Path(scratch), quick=options.quick)
            found: list[dict[str, float]] = []
            for number in range(repeats):
                folder = Path(scratch) / f"{task}-{number}"
                seen = family.train(task, model, folder, [f"steps={steps}"], _now, every_s=PERIOD_S)
                found.append(cores_used(seen, steps))
            report(task, found, cores, options.quick)
    return 0


def report(task: str, found: Sequence[Mapping[str, float]], cores: int, quick: bool) -> None:
    """Write the result of one task."""
    shares = [sum(used.values()) / cores for used in found]
    result = frame.Result(
        name=f"processor_bound_{task}",
        script="processor_bound",
        figure=frame.Figure.of(shares),
        what=f"processor time of a run's steps, spread over {cores} cores / their wall-clock, {task}",
        details={
            "shares": shares,
            "cores_used": {name: frame.spread([used.get(name, 0.0) for used in found]) for name in found[0]},
        },
    )
    frame.finish(result, quick=quick)


if __name__ == "__main__":
    sys.exit(main())
