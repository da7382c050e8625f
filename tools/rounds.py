"""Certify every reference again and again beside a busy machine, and tell each verdict that is not success.

    python tools/rounds.py --out build/rounds                      20 rounds beside two busy processes per core
    python tools/rounds.py --out DIR --only 'transport-*' --load 0 some of them, and no more load than there is

A reference is right, so `fail` is a false alarm and `inconclusive` a check that could not tell on this machine. Reports
lie in OUT/round-NN/NAME, one line about each certification in OUT/rounds.log. A folder that has a report is not made
again: the same command goes on where it was ended. Exits with 1 if there was a verdict other than success.

Knows: which targets are references, how load is made.
Does not know: checks.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REFERENCES = {
    "device-cpu": "--backend cpu --role device",
    "transport-disk": "--backend disk --role transport",
    "transport-shm": "--backend shm --role transport",
    "transport-collective": "--backend collective --role transport",
    "scheduler-local": "--backend local --role scheduler",
    "workflow-single_turn": "--backend single_turn --role workflow",
    "endpoint-http": "--backend http --role endpoint",
    "renderer-qwen3": "--backend qwen3 --role renderer",
    "infer-reference": "--backend reference --role infer",
    "train-reference": "--backend reference --role train",
    "train-fsdp": "--backend fsdp --role train --ranks 2",
    "pair-reference+reference": "--pair reference+reference",
}
BURN = "while True: pass"


def main() -> int:
    """Make the rounds asked for."""
    asked = _asked()
    names = [name for name in REFERENCES if any(fnmatch.fnmatch(name, one) for one in asked.only)]
    if not names:
        sys.exit(f"rounds.py: --only {' '.join(asked.only)} names none of {', '.join(REFERENCES)}")
    told = []
    with _busy(asked.load):
        for number in range(1, asked.rounds + 1):
            for name in names:
                folder = asked.out / f"round-{number:02d}" / name
                if not (folder / "report.json").exists():
                    told += _certify(name, folder, asked)
    for line in told:
        print(line)
    print(f"{asked.rounds} rounds of {len(names)}: {len(told)} verdicts that are not success")
    return 1 if told else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the reports")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--load", type=int, default=2 * (os.cpu_count() or 1), help="processes that do nothing but run")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help=f"of {', '.join(REFERENCES)}")
    return parser.parse_args()


@contextlib.contextmanager
def _busy(load: int) -> Iterator[None]:
    """Run so many processes that never wait, until the block ends."""
    busy = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(load)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _certify(name: str, folder: Path, asked: argparse.Namespace) -> list[str]:
    """Certify one reference; return a line if that did not succeed. Every line is in the log."""
    areal = Path(sys.executable).with_name("areal")
    command = [areal, "conformance", "run", *shlex.split(REFERENCES[name])]
    command += ["--level", str(asked.level), "--report", folder]
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    line = f"{folder.parent.name} {name} {time.monotonic() - began:.0f} s: {_found(folder, run)}"
    with (asked.out / "rounds.log").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
    return [] if run.returncode == 0 else [line]


def _found(folder: Path, run: subprocess.CompletedProcess[str]) -> str:
    """Return the verdict, and each check that neither passed nor was skipped, in its own words."""
    try:
        report = json.loads((folder / "report.json").read_text())
    except OSError:
        return f"no report, exit code {run.returncode}: {run.stderr[-500:]}"
    odd = [row for row in report["checks"] if row["outcome"] not in ("pass", "skip", "not-run")]
    words = [f"\n  {row['outcome']} {row['id']} {row['seconds']:.1f} s: {row['message']}" for row in odd]
    return report["verdict"] + "".join(words)


if __name__ == "__main__":
    sys.exit(main())
