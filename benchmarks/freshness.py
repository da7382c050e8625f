"""How old are the episodes that are trained on, with `rollout.admission` just in time against as early as possible?

Real runs of `areal train` on a quickstart preset, both ways in turns, the same seed and bound. The ratio is that of
their mean staleness after the first quarter of the steps, medians of the repeats; seconds of both stand beside it, for
freshness that costs speed is none.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import frame
import runs

from areal_core.observe.jsonl import read_lines

WAYS = ("just_in_time", "eager")


def mean_staleness(folder: Path) -> float:
    """Return the mean over the steps of a run's last three quarters."""
    seen = [float(record["staleness_mean"]) for record in read_lines(folder / "metrics.jsonl")]
    late = seen[len(seen) // 4 :]
    return sum(late) / len(late)


def main() -> int:
    """Run both ways in turns and report."""
    parser = frame.parser(__doc__)
    parser.add_argument("--task", default="spell", choices=["spell", "long_spell"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--staleness", type=int, default=2, help="the bound, rollout.max_staleness")
    parser.add_argument("--repeats", type=int, default=5, help="of each, in turns; medians count")
    options = parser.parse_args()
    steps, repeats = (4, 1) if options.quick else (options.steps, options.repeats)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    staleness: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        model = runs.starting_model(options.task, Path(scratch), quick=options.quick)
        for number in range(repeats):
            for way in WAYS:
                folder = Path(scratch) / f"{way}-{number}"
                overrides = [f"steps={steps}", f"rollout.admission={way}", f"rollout.max_staleness={options.staleness}"]
                seconds[way].append(runs.areal_train(options.task, model, folder, overrides).after_first_s)
                staleness[way].append(mean_staleness(folder))
    took = frame.Figure.of(*(seconds[way] for way in WAYS))
    result = frame.Result(
        name=f"freshness_{options.task}",
        script="freshness",
        figure=frame.Figure.of(*(staleness[way] for way in WAYS)),
        what=f"mean staleness just in time / as early as possible, {options.task}, bound {options.staleness}, "
        f"{took.ratio:.3f} of its seconds",
        details={
            "mean_staleness": {way: frame.spread(values) for way, values in staleness.items()},
            "seconds": {way: frame.spread(values) for way, values in seconds.items()},
            "seconds_ratio": took,
            "steps": steps,
            "bound": options.staleness,
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
