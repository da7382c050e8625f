"""Certify every reference again and again beside a busy machine, and tell each verdict that is not success.

    python tools/rounds.py --out build/rounds                      20 rounds beside two busy processes per core
    python tools/rounds.py --out DIR --only 'transport-*' --load 0 some of them, and no more load than there is
    python tools/rounds.py --out DIR --table PAGE.md               nothing but a page of what became of them

A reference is right, so `fail` is a false alarm and `inconclusive` a check that could not tell on this machine. Reports
lie in OUT/round-NN/NAME, one line about each certification in OUT/rounds.log. A folder that has a report is not made
again: the same command goes on where it was ended. Exits with 1 if there was a verdict other than success.

Knows: which targets are references, how load is made, the page.
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
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

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
AGAIN = "made once more"
"""How the note of a check begins that could not tell at first (`areal_conformance.session`)."""
PAGE = """# References, again and again

Made with `tools/rounds.py` from the reports of {command}. A reference is right: `fail` would be a false alarm of the
suite, and `inconclusive` a check that could not tell on this machine, also when it was made once more.
[What the rounds are for](../explanation/conformance.md).

| reference | rounds | `success` | the last in a row | checks that ran | seconds, median and slowest |
|---|---|---|---|---|---|
{rows}

The machine: {machine}; the suite: {commits}; first and last report: {days}.
"""


def main() -> int:
    """Make the rounds asked for."""
    asked = _asked()
    names = [name for name in REFERENCES if any(fnmatch.fnmatch(name, one) for one in asked.only)]
    if not names:
        sys.exit(f"rounds.py: --only {' '.join(asked.only)} names none of {', '.join(REFERENCES)}")
    if asked.table:
        asked.table.write_text(_page(asked.out), encoding="utf-8")
        return 0
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
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write what became of them, and make none")
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


def _page(out: Path) -> str:
    """Return the page of all reports in a folder, and what was found where a verdict is not success."""
    rows, odd = [], []
    reports: list[dict[str, Any]] = []
    for name in REFERENCES:
        made = {path: json.loads(path.read_text()) for path in sorted(out.glob(f"round-*/{name}/report.json"))}
        if not made:
            continue
        reports += made.values()
        ran = {sum(check["outcome"] == "pass" for check in one["checks"]) for one in made.values()}
        seconds = [one["seconds"] for one in made.values()]
        good = [one["verdict"] == "success" for one in made.values()]
        last = len(list(takewhile(bool, reversed(good))))
        counts = " to ".join(str(count) for count in sorted({min(ran), max(ran)}))
        rows.append(
            f"| `{REFERENCES[name]}` | {len(made)} | {sum(good)} | {last} | {counts} "
            f"| {median(seconds):.0f}, {max(seconds):.0f} |"
        )
        odd += [
            f"- {path.parent.parent.name}, `{name}`: {_told(one)}"
            for path, one in made.items()
            if one["verdict"] != "success" or any(map(_says, one["checks"]))
        ]
    if not reports:
        sys.exit(f"rounds.py: {out} has no report, round-NN/NAME/report.json; make rounds first, without --table")
    days, versions = sorted(one["started"][:16] for one in reports), reports[0]["versions"]
    return PAGE.format(
        command=f"`areal conformance run ... --level {reports[0]['subject']['level']}`",
        rows="\n".join(rows),
        machine=f"{os.cpu_count()} cores, {versions['platform']}, torch {versions['torch']}",
        commits=", ".join(sorted({one["git"] for one in reports})),
        days=f"{days[0]} and {days[-1]}",
    ) + "".join(f"\n{line}" for line in odd)


def _found(folder: Path, run: subprocess.CompletedProcess[str]) -> str:
    """Return the verdict, and each check that neither passed nor was skipped, in its own words."""
    try:
        report = json.loads((folder / "report.json").read_text())
    except OSError:
        return f"no report, exit code {run.returncode}: {run.stderr[-500:]}"
    return _told(report)


def _told(report: Mapping[str, Any]) -> str:
    words = [
        f"\n  {row['outcome']} {row['id']} {row['seconds']:.1f} s: {_says(row)}"
        for row in report["checks"]
        if _says(row)
    ]
    return str(report["verdict"]) + "".join(words)


def _says(row: Mapping[str, Any]) -> str:
    """Return why a check did not pass, or not at once; empty for every other one."""
    if row["outcome"] not in ("pass", "skip", "not-run"):
        return str(row["message"] or row["outcome"])
    return next((note for note in row.get("notes", ()) if note.startswith(AGAIN)), "")


if __name__ == "__main__":
    sys.exit(main())
