"""Wall-clock of task B asynchronously (max_staleness 2), against the bound of its phases measured one at a time.

Real runs of `areal train` on the preset `long_spell`, asynchronous and synchronous (max_staleness 0) in turns. In the
synchronous one a phase has the machine for itself, so its busy seconds of generation and of training are what each
costs alone. If they overlapped perfectly, a run would take the larger of the two. The ratio is that bound / time of
the asynchronous run, medians of the repeats.
"""

from __future__ import annotations

import statistics
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
    parser.add_argument("--repeats", type=int, default=5, help="of each, in turns; medians count")
    options = parser.parse_args()
    steps, repeats = (4, 1) if options.quick else (options.steps, options.repeats)
    found: dict[str, list[runs.RunFigures]] = {"async": [], "sync": []}
    with tempfile.TemporaryDirectory() as scratch:
        model = runs.starting_model(options.task, Path(scratch), quick=options.quick)
        for number in range(repeats):
            for name, staleness in (("async", 2), ("sync", 0)):
                folder = Path(scratch) / f"{name}-{number}"
                overrides = [f"steps={steps}", f"seed={options.seed}", f"rollout.max_staleness={staleness}"]
                found[name].append(runs.areal_train(options.task, model, folder, overrides))
    alone = {
        "generation_s": [run.infer_busy_s for run in found["sync"]],
        "training_s": [run.train_busy_s for run in found["sync"]],
    }
    bound = max(alone.values(), key=statistics.median)
    taken = {name: [run.seconds for run in figures] for name, figures in found.items()}
    result = frame.Result(
        name="async_vs_sync",
        figure=frame.Figure.of(bound, taken["async"]),
        what=f"max(T_gen, T_train), measured apart / time, {options.task}, {steps} steps",
        details={
            "seconds": {name: frame.spread(values) for name, values in taken.items()},
            "sync_over_async": frame.Figure.of(taken["sync"], taken["async"]),
            "bound_s": statistics.median(bound),
            "phases_alone": {name: frame.spread(values) for name, values in alone.items()},
            "busy_while_overlapping": {
                "generation_s": frame.spread([run.infer_busy_s for run in found["async"]]),
                "training_s": frame.spread([run.train_busy_s for run in found["async"]]),
            },
            "runs": {name: [run.as_dict() for run in figures] for name, figures in found.items()},
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
