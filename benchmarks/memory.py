"""How every process of a run grows over 5,000 steps: resident memory of the last fifth against the second.

The quickstart's own run, its processes looked at from outside four times a second: the controller, every worker, the
reward's. The first fifth does not count: caches fill, allocators settle.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import family
import frame
import psutil
import runs

TASK, STEPS, PARTS, PERIOD_S = "spell", 5_000, 5, 0.25


def _mebibytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 2**20


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
        model = runs.starting_model(TASK, Path(scratch), quick=options.quick)
        seen = family.train(TASK, model, Path(scratch) / "run", [f"steps={steps}"], _mebibytes, every_s=PERIOD_S)
    sizes = {name: grown(samples, steps) for name, samples in seen.items()}
    figures = {name: frame.Figure.of([last], second) for name, (second, last) in sizes.items()}
    worst = max(figures, key=lambda name: figures[name].ratio)
    result = frame.Result(
        name="memory",
        figure=figures[worst],
        what=f"resident memory of the process that grew most ({worst}), last fifth of {steps:,} steps / the second",
        details={
            "steps": steps,
            "mebibytes": {name: {"second_fifth": second, "last_fifth": last} for name, (second, last) in sizes.items()},
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
