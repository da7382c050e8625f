"""Seconds of reinforcement learning for an equal number of steps: areal against TRL.

Tasks A (`spell`) and B (`long_spell`), the same checkpoint, prompts, rewards and hyper-parameters, on the same cores,
in turns: every repeat runs each contender once. TRL runs in an environment of its own, `--trl-python` (default: the
environment variable AREAL_TRL_PYTHON), with one thread and with two; the number with the lower median counts.
Start-up and evaluation do not count for anybody: the runs are evaluated after the last step only. Medians are compared
over the whole phase and again from the end of the first step on; the smaller ratio is reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import frame
import runs
from baselines.launch import TRL, write_rows

SPANS = ("seconds", "after_first_s")


def compare_task(task: str, options: argparse.Namespace, trl: TRL, scratch: Path) -> dict[str, Any]:
    """Run every contender on one task. Any: json."""
    steps = 4 if options.quick else options.steps
    config = runs.preset(task, [f"seed={options.seed}", f"steps={steps}"])
    files = write_rows(config, scratch / task)
    model = runs.starting_model(task, scratch, quick=options.quick)
    overrides = [f"steps={steps}", f"seed={options.seed}"]
    timed: dict[str, list[dict[str, Any]]] = {"areal": []}
    for number in range(1 if options.quick else options.repeats):
        folder = scratch / f"{task}-{number}"
        timed["areal"].append(runs.areal_train(task, model, folder, overrides).as_dict())
        for kind in options.peers:
            for threads in options.threads:
                run = trl.train(kind, config, model, files, threads=threads, evaluate_every=0, steps=steps)
                timed.setdefault(f"{kind} {threads} threads", []).append(run)
        _say(task, timed)
    spans = {name: {span: [run[span] for run in found] for span in SPANS} for name, found in timed.items()}
    report: dict[str, Any] = {
        "steps": steps,
        "seconds": spans,
        "spread": {name: {span: frame.spread(values) for span, values in each.items()} for name, each in spans.items()},
        "final": {name: [run["final"] for run in found] for name, found in timed.items()},
        "areal_runs": timed["areal"],
        "ratios": {},
        "chosen": {},
    }
    for kind in options.peers:
        names = [name for name in spans if name.startswith(kind + " ")]
        best = min(names, key=lambda name: statistics.median(spans[name]["seconds"]))
        report["chosen"][kind] = best
        report["ratios"][kind] = {span: frame.Figure.of(spans[best][span], spans["areal"][span]) for span in SPANS}
    return report


def main() -> int:
    """Measure every task; one line per task and peer."""
    options = arguments()
    problem = TRL.missing(options.trl_python)
    if problem:
        print(f"equal_steps: skipped, {problem}")
        return 0
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        trl = TRL(options.trl_python, Path(scratch), seed=options.seed, staleness=options.trl_staleness)
        for task in options.tasks:
            report = compare_task(task, options, trl, Path(scratch))
            for kind, ratios in report["ratios"].items():
                result = frame.Result(
                    name=f"equal_steps_{task}_{kind}",
                    script="equal_steps",
                    figure=frame.smallest(ratios.values()),
                    what=f"seconds of TRL {kind} / of areal, {report['steps']} steps of {task}",
                    details=report,
                )
                frame.finish(result, quick=options.quick)
    return 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--trl-python", default=os.environ.get("AREAL_TRL_PYTHON", ""))
    parser.add_argument("--tasks", nargs="+", default=["spell", "long_spell"], choices=["spell", "long_spell"])
    parser.add_argument("--peers", nargs="+", default=["sync", "async"], choices=["sync", "async"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of TRL's trainer; the best counts")
    parser.add_argument("--trl-staleness", type=int, default=4, help="TRL's own default")
    parser.add_argument("--repeats", type=int, default=5, help="of every contender, in turns; medians count")
    return parser.parse_args()


def _say(task: str, timed: dict[str, list[dict[str, Any]]]) -> None:
    seconds = {name: round(found[-1]["seconds"], 1) for name, found in timed.items()}
    print(f"  {task}: seconds so far {seconds}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.output}")
