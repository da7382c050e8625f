"""Wall-clock of task B asynchronously (max_staleness 2) and synchronously (0), against the bound of perfect overlap.

Two real runs of `areal train` on the preset `long_spell`, one after the other. If generation and training
overlapped perfectly, a run would take max(T_gen, T_train): the busy seconds of the busier side, by the run's own
metrics. The ratio is bound / time of the asynchronous run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import frame
import runs


def main() -> int:
    """Run both and report."""
    parser = frame.parser(__doc__)
    parser.add_argument("--task", default="long_spell", choices=["spell", "long_spell"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="of each; the fastest run of each counts")
    options = parser.parse_args()
    steps, repeats = (4, 1) if options.quick else (options.steps, options.repeats)
    found: dict[int, list[runs.RunFigures]] = {2: [], 0: []}
    with tempfile.TemporaryDirectory() as scratch:
        model = runs.starting_model(options.task, Path(scratch), quick=options.quick)
        for number in range(repeats):
            for staleness, figures in found.items():
                folder = Path(scratch) / f"run-{staleness}-{number}"
                overrides = [f"steps={steps}", f"seed={options.seed}", f"rollout.max_staleness={staleness}"]
                figures.append(runs.areal_train(options.task, model, folder, overrides))
    asynchronous, synchronous = (min(figures, key=lambda run: run.seconds) for figures in found.values())
    bound = max(asynchronous.train_busy_s, asynchronous.infer_busy_s)
    result = frame.Result(
        name="async_vs_sync",
        ratio=bound / asynchronous.seconds,
        target=0.9,
        what=f"max(T_gen, T_train) / time, {options.task}, {steps} steps",
        details={
            "async_s": asynchronous.seconds,
            "sync_s": synchronous.seconds,
            "sync_over_async": synchronous.seconds / asynchronous.seconds,
            "bound_s": bound,
            "bound_of_sync_run_s": max(synchronous.train_busy_s, synchronous.infer_busy_s),
            "async": asynchronous.as_dict(),
            "sync": synchronous.as_dict(),
            "all_seconds": {f"max_staleness {s}": [run.seconds for run in figures] for s, figures in found.items()},
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
