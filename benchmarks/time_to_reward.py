"""Seconds of reinforcement learning to an equal number of steps and an equal reward: areal against TRL.

Tasks A (`spell`) and B (`long_spell`), the same checkpoint, prompts, rewards and hyper-parameters, one contender
after the other on the same cores. TRL runs in an environment of its own, `--trl-python` (default: the environment
variable AREAL_TRL_PYTHON), with one thread and with two; its faster run counts. Start-up and evaluation do not
count for anybody: the timed runs are evaluated after the last step only, the curves come from runs of their own.
The ratio is taken over the whole phase and again from the end of the first step on; the smaller one is reported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import frame
import runs
from baselines.launch import TRL, write_rows

TARGETS = {"sync": 1.5, "async": 4.0}
"""Of task B, the one with the heavy tail."""
CURVE_EVERY = 20


def compare_task(task: str, options: argparse.Namespace, trl: TRL, scratch: Path) -> dict[str, Any]:
    """Run every contender on one task. Any: json."""
    steps = 4 if options.quick else options.steps
    config = runs.preset(task, [f"seed={options.seed}", f"steps={steps}"])
    files = write_rows(config, scratch / task)
    model = runs.starting_model(task, scratch, quick=options.quick)
    overrides = [f"steps={steps}", f"seed={options.seed}"]
    number = 0

    def areal(every: int) -> dict[str, Any]:
        nonlocal number
        number += 1
        folder = scratch / f"{task}-{number}"
        return runs.areal_train(task, model, folder, overrides, evaluate_every=every).as_dict()

    def peer(kind: str, threads: int, every: int) -> dict[str, Any]:
        return trl.train(kind, config, model, files, threads=threads, evaluate_every=every, steps=steps)

    repeats = 1 if options.quick else options.repeats
    timed: dict[str, list[dict[str, Any]]] = {"areal": []}
    for _ in range(repeats):
        timed["areal"].append(areal(0))
        for kind in options.peers:
            for threads in options.threads:
                timed.setdefault(f"{kind} {threads} threads", []).append(peer(kind, threads, 0))
                _say(task, timed)
    best = {name: min(found, key=lambda run: run["seconds"]) for name, found in timed.items()}
    report: dict[str, Any] = {"steps": steps, "areal": best["areal"], "all": _brief(timed), "ratios": {}}
    for kind in options.peers:
        names = [name for name in best if name.startswith(kind + " ")]
        winner = min(names, key=lambda name: best[name]["seconds"])
        report[kind] = {**best[winner], "chosen": winner}
        report["ratios"][kind] = {
            span: best[winner][span] / best["areal"][span] for span in ("seconds", "after_first_s")
        }
    if options.curves and not options.quick:
        chosen = {kind: int(report[kind]["chosen"].split()[1]) for kind in options.peers}
        report["curves"] = {kind: peer(kind, n, CURVE_EVERY)["evaluations"] for kind, n in chosen.items()}
        report["curves"]["areal"] = areal(CURVE_EVERY)["evaluations"]
    return report


def main() -> int:
    """Measure every task; one line per task and peer."""
    options = arguments()
    problem = TRL.missing(options.trl_python)
    if problem:
        print(f"time_to_reward: skipped, {problem}")
        return 0
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        trl = TRL(options.trl_python, Path(scratch), seed=options.seed, staleness=options.trl_staleness)
        for task in options.tasks:
            report = compare_task(task, options, trl, Path(scratch))
            for kind, ratios in report["ratios"].items():
                result = frame.Result(
                    name=f"time_to_reward_{task}_{kind}",
                    script="time_to_reward",
                    ratio=min(ratios.values()),
                    target=TARGETS[kind] if task == "long_spell" else None,
                    what=f"seconds of TRL {kind} / of areal, {report['steps']} steps of {task}, "
                    f"final reward {report[kind]['final']:.3f} / {report['areal']['final']:.3f}",
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
    parser.add_argument("--repeats", type=int, default=1, help="of every timed run; the fastest counts")
    parser.add_argument("--no-curves", dest="curves", action="store_false", help="leave out the evaluated runs")
    return parser.parse_args()


def _say(task: str, timed: dict[str, list[dict[str, Any]]]) -> None:
    seconds = {name: round(found[-1]["seconds"], 1) for name, found in timed.items()}
    print(f"  {task}: seconds so far {seconds}", file=sys.stderr, flush=True)


def _brief(timed: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {name: [[run["seconds"], run["final"]] for run in found] for name, found in timed.items()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.output}")
