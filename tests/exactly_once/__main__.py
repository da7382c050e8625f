"""Kill every process of a small run, or press Ctrl-C, at every boundary: `python -m tests.exactly_once`.

With `--folder` each judged case is written down there; stopped and started again, it goes on with those that are left.
Once all are judged, what came of them is written to `result.json` beside this file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import attrs

from areal_core.observe.jsonl import read_lines
from areal_tasks.tiny import make_spell_model
from areal_worker import watchdog

from . import prepared
from .enumeration import Case, Enumeration, Mode, Verdict
from .killed_run import CTRL_C, VICTIMS

RESULT = Path(__file__).with_name("result.json")


def main() -> int:
    """Print a line per case; 1 if one of them has a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.exactly_once", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where runs and verdicts are kept, to go on there later")
    parser.add_argument("--every", type=int, default=1, help="take every n-th run of kills only")
    parser.add_argument("--mode", choices=list(Mode), action="append", help="one mode only")
    parser.add_argument("--victim", choices=[*VICTIMS, CTRL_C], action="append", help="so too")
    parser.add_argument("--case", action="append", help="this case only, by its name, in a run of its own")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        enumerations = prepared_enumerations(folder)
        cases = [case for each in enumerations.values() for case in each.cases()]
        verdicts = read_verdicts(folder)
        chains = _chains(enumerations, cases, options)
        left = [chain for chain in chains if not all(case in verdicts for case in chain)]
        _judge_all(enumerations, left, folder, options.jobs)
        verdicts = read_verdicts(folder)
    result = _result(cases, [verdicts[case] for case in cases if case in verdicts])
    print(json.dumps(result, indent=2))
    if result["judged"] == result["cases"]:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["faults"] else 0


def prepared_enumerations(folder: Path) -> dict[Mode, Enumeration]:
    """Make the model and the run of each mode that nobody kills, or take those that are there."""
    prepared.prepare()
    model = folder / "model"
    if not (model / "model.safetensors").exists():
        _joined(_forked(make_spell_model, model, 1))  # its progress bar leaves a thread behind
    return {mode: Enumeration(mode, model, folder / mode) for mode in Mode}


def read_verdicts(folder: Path) -> dict[Case, Verdict]:
    """Return what was judged in this folder before."""
    path = folder / "verdicts.jsonl"
    if not path.exists():
        return {}
    verdicts = [
        Verdict(case=Case.of(line["case"]), ending=line["ending"], faults=tuple(line["faults"]))
        for line in read_lines(path)
    ]
    return {verdict.case: verdict for verdict in verdicts}


def _chains(
    enumerations: dict[Mode, Enumeration], cases: Sequence[Case], options: argparse.Namespace
) -> list[tuple[Case, ...]]:
    """Return what runs are to be made, in which order: Ctrl-C after the processes."""
    if options.case:
        chosen = list(map(Case.of, options.case))
        if unknown := [str(case) for case in chosen if case not in cases]:
            sys.exit(f"no such case: {', '.join(unknown)}")
        return [(case,) for case in chosen]
    chains = [
        chain
        for mode, each in enumerations.items()
        for chain in each.chains([case for case in cases if case.mode is mode])
        if mode in (options.mode or Mode) and chain[0].victim in (options.victim or [*VICTIMS, CTRL_C])
    ]
    random.Random(1).shuffle(chains)  # what was made when somebody stops is a sample of all
    return sorted(chains, key=lambda chain: chain[0].victim == CTRL_C)[:: options.every]


def _judge_all(
    enumerations: dict[Mode, Enumeration], chains: Sequence[Sequence[Case]], folder: Path, num_jobs: int
) -> None:
    """Judge chain by chain, so many at a time, each job in a fork of this process."""
    jobs = [_forked(_judge, enumerations, chains[job::num_jobs], folder) for job in range(num_jobs)]
    for job in jobs:
        _joined(job)


def _forked(target: Callable[..., object], *arguments: object) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def _joined(process: BaseProcess) -> None:
    process.join()
    if process.exitcode:
        sys.exit(f"a process of this command ended with {process.exitcode}")


def _judge(enumerations: dict[Mode, Enumeration], chains: Sequence[Sequence[Case]], folder: Path) -> None:
    watchdog.die_with_parent()
    for chain in chains:
        for verdict in enumerations[chain[0].mode].judge(chain):
            line = attrs.asdict(verdict) | {"case": str(verdict.case)}
            with (folder / "verdicts.jsonl").open("a") as lines:
                lines.write(json.dumps(line) + "\n")
            print(f"{verdict.case}: {verdict.ending}", *verdict.faults, sep="\n  ", flush=True)


def _result(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> dict[str, object]:
    counts = Counter((v.case.mode.value, v.case.victim, v.ending) for v in verdicts)
    return {
        "cases": len(cases),
        "judged": len(verdicts),
        "endings": [{"mode": m, "victim": w, "ending": e, "cases": n} for (m, w, e), n in sorted(counts.items())],
        "faults": {str(v.case): list(v.faults) for v in verdicts if v.faults},
    }


if __name__ == "__main__":
    sys.exit(main())
