"""Seconds of reinforcement learning until the held-out reward is 0.9: areal against TRL.

The same checkpoint, prompts, rewards and hyper-parameters on the same cores; for every seed each contender runs once,
one after the other, TRL with one thread and with two: the number with the lower median counts. All are evaluated every
few steps on the same rows; evaluation and start-up count for nobody. What counts is the first evaluation at or above
the reward; a run that never gets there counts with all its seconds and is told. Medians over seeds are compared. TRL's
environment is that of `equal_steps.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import frame
import runs
from baselines.launch import TRL, write_rows

GOAL = 0.9


def seconds_to(reached: list[tuple[float, float]], goal: float) -> tuple[float, bool]:
    """Return when a run was first evaluated at or above a reward, and whether it was; else when it ended."""
    for seconds, reward in reached:
        if reward >= goal:
            return seconds, True
    return reached[-1][0], False


def one_seed(task: str, seed: int, options: argparse.Namespace, scratch: Path) -> dict[str, list[tuple[float, float]]]:
    """Run every contender once and return what each had reached when."""
    steps, every = (4, 2) if options.quick else (options.steps, options.every)
    settings = [f"seed={seed}", f"steps={steps}"]
    config, model = runs.preset(task, settings), runs.starting_model(task, scratch, quick=options.quick)
    files = write_rows(config, scratch / f"rows-{task}-{seed}")
    trl = TRL(options.trl_python, scratch / f"rows-{task}-{seed}", seed=seed, staleness=options.trl_staleness)
    folder = scratch / f"{task}-{seed}"
    found = {"areal": runs.areal_train(task, model, folder, settings, evaluate_every=every).reached}
    for kind in options.peers:
        for threads in options.threads:
            run = trl.train(kind, config, model, files, threads=threads, evaluate_every=every, steps=steps)
            found[f"{kind} {threads} threads"] = [(seconds, reward) for seconds, reward in run["reached"]]
    return found


def main() -> int:
    """Measure every task; one line per task and peer."""
    options = arguments()
    problem = TRL.missing(options.trl_python)
    if problem:
        print(f"time_to_reward: skipped, {problem}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        for task in options.tasks:
            curves: dict[str, list[list[tuple[float, float]]]] = {}
            for seed in options.seeds[:1] if options.quick else options.seeds:
                for name, reached in one_seed(task, seed, options, Path(scratch)).items():
                    curves.setdefault(name, []).append(reached)
                    print(f"  {task}, seed {seed}: {name} {seconds_to(reached, options.goal)}", file=sys.stderr)
            report(task, curves, options)
    return 0


def report(task: str, curves: dict[str, list[list[tuple[float, float]]]], options: argparse.Namespace) -> None:
    """Write one result for each peer."""
    ends = {name: [seconds_to(reached, options.goal) for reached in found] for name, found in curves.items()}
    seconds = {name: [took for took, _ in found] for name, found in ends.items()}
    details: dict[str, Any] = {
        "goal": options.goal,
        "seconds": {name: frame.spread(values) for name, values in seconds.items()},
        "seeds_that_got_there": {name: sum(there for _, there in found) for name, found in ends.items()},
        "seeds": len(ends["areal"]),
        "curves": curves,
    }
    for kind in options.peers:
        names = [name for name in seconds if name.startswith(kind + " ")]
        best = min(names, key=lambda name: statistics.median(seconds[name]))
        result = frame.Result(
            name=f"time_to_reward_{task}_{kind}",
            script="time_to_reward",
            figure=frame.Figure.of(seconds[best], seconds["areal"]),
            what=f"seconds of TRL {kind} / of areal until the held-out reward is {options.goal}, {task}",
            details=details | {"chosen": best},
        )
        frame.finish(result, quick=options.quick)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--trl-python", default=os.environ.get("AREAL_TRL_PYTHON", ""))
    parser.add_argument("--tasks", nargs="+", default=["spell"], choices=["spell", "long_spell"])
    parser.add_argument("--peers", nargs="+", default=["sync", "async"], choices=["sync", "async"])
    parser.add_argument("--goal", type=float, default=GOAL, help="the held-out reward to reach")
    parser.add_argument("--steps", type=int, default=60, help="at most so many")
    parser.add_argument("--every", type=int, default=5, help="steps between two evaluations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of TRL's trainer; the best counts")
    parser.add_argument("--trl-staleness", type=int, default=4, help="TRL's own default")
    options: argparse.Namespace = parser.parse_args()
    return options


if __name__ == "__main__":
    sys.exit(main())
