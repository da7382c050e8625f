"""Soak: `python -m tests.soak kills|steps|interrupts`. Each writes what came of it into `results/`.

Opt-in: an hour, some minutes, a quarter of an hour. `--hours`, `--steps` and `--interrupts` say how much.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import signal
import sys
import tempfile
from pathlib import Path

from . import interrupts, kills, runs, steps

FEWEST = 500
RESULTS = Path(__file__).with_name("results")


def main() -> int:
    """Run one kind; 1 if there is a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("kind", choices=("kills", "steps", "interrupts"))
    parser.add_argument("--hours", type=float, default=1.0, help="kills: for how long")
    parser.add_argument("--steps", type=int, default=5000, help="steps: how many")
    parser.add_argument("--interrupts", type=int, default=40, help="interrupts: how many")
    parser.add_argument("--at-once", type=int, default=2, help="interrupts: so many runs at a time")
    parser.add_argument("--minutes", type=float, default=120.0, help="interrupts: no further one after so long")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; a new one if not given")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the runs, which stays")
    options = parser.parse_args()
    if options.kind == "steps" and options.steps < FEWEST:
        parser.error(f"--steps {options.steps}: no growth can be told from fewer than {FEWEST}")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and all they start, ignore it
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        with runs.Machine.make(scratch.resolve()) as machine:
            if options.kind == "kills":
                found = kills.Soak(machine, random.Random(seed)).go(options.hours * 3600)
            elif options.kind == "steps":
                found = steps.soak(machine, options.steps, every=max(1, options.steps // 100))
            else:
                found = interrupts.soak(
                    machine, random.Random(seed), options.interrupts, options.at_once, options.minutes
                )
    text = json.dumps({**_where(), "seed": seed, **found}, indent=2)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.kind}.json").write_text(text + "\n")
    print(text)
    return int(_has_fault(found))


def _has_fault(found: object) -> bool:
    if isinstance(found, dict):
        return bool(found.get("faults")) or any(map(_has_fault, found.values()))
    return isinstance(found, list) and any(map(_has_fault, found))


def _where() -> dict[str, object]:
    return {
        "command": " ".join(["python -m tests.soak", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
    }


if __name__ == "__main__":
    sys.exit(main())
