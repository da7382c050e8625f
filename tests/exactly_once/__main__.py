"""Run the whole enumeration, two cases at a time, and write what came of it: `python -m tests.exactly_once`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from areal_tasks.tiny import make_spell_model

from .enumeration import Enumeration, Mode, Verdict
from .killed_run import CTRL_C, VICTIMS

RESULT = Path(__file__).with_name("result.json")


def main() -> int:
    """Print a line per case; 1 if one of them has a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.exactly_once", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th case only, and write no result")
    parser.add_argument("--mode", choices=list(Mode), action="append", help="one mode only, and write no result")
    parser.add_argument("--victim", choices=[*VICTIMS, CTRL_C], action="append", help="so too, and write no result")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    options = parser.parse_args()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as jobs:
        folder = Path(name)
        model = make_spell_model(folder / "model", seed=1)
        for mode in map(Mode, options.mode or Mode):
            enumeration = Enumeration(mode, model, folder / mode)
            chosen = options.victim or [*VICTIMS, CTRL_C]
            cases = [case for case in enumeration.cases() if case.victim in chosen][:: options.every]
            for number, verdict in enumerate(jobs.map(enumeration.judge, cases), start=1):
                print(
                    f"{number}/{len(cases)} {verdict.case}: {verdict.ending}", *verdict.faults, sep="\n  ", flush=True
                )
                verdicts.append(verdict)
    result = _result(verdicts)
    print(json.dumps(result, indent=2))
    if options.every == 1 and not options.mode and not options.victim:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["faults"] else 0


def _result(verdicts: list[Verdict]) -> dict[str, object]:
    counts = Counter((v.case.mode.value, v.case.victim, v.ending) for v in verdicts)
    return {
        "cases": len(verdicts),
        "endings": [{"mode": m, "victim": w, "ending": e, "cases": n} for (m, w, e), n in sorted(counts.items())],
        "faults": {str(v.case): list(v.faults) for v in verdicts if v.faults},
    }


if __name__ == "__main__":
    sys.exit(main())
