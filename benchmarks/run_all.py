"""Run every benchmark, one after the other, and print a table. One that fails is shown; the others go on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import frame
import quiet

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    "help",
    "orchestration",
    "scale",
    "controller",
    "processor_bound",
    "rpc",
    "long_batch",
    "weight_sync",
    "weights_across_hosts",
    "packing",
    "train_step",
    "resume",
    "rollout_processes",
    "episode_store",
    "reader_memory",
    "memory",
    "shared_devices",
    "generation",
    "served",
    "algorithms",
    "kinds",
    "agents",
    "async_vs_sync",
    "freshness",
    "equal_steps",
    "time_to_reward",
)
"""The short ones first. Never two at once: they measure the same cores. `prefix_sharing` is left out: it measures one
engine, which must be named, and a pretrained model."""
TIMEOUT_S = 3 * 3600


def run_one(name: str, *, flags: list[str]) -> tuple[int, float]:
    """Run one script; its lines go through. Return exit code and seconds."""
    command = [sys.executable, str(HERE / f"{name}.py"), *flags]
    began = time.perf_counter()
    try:
        code = subprocess.run(command, cwd=frame.ROOT, env=quiet.unseen(), timeout=TIMEOUT_S).returncode
    except subprocess.TimeoutExpired:
        code = 124
    return code, time.perf_counter() - began


def table(folder: Path, since: float) -> str:
    """Return the results written since a moment, as text."""
    lines = [f"{'benchmark':34}{'ratio':>9}  {'least to most':>20}  {'target':>8}  {'':6}  measured"]
    for path in sorted(folder.glob("*.json")):
        if path.stat().st_mtime < since:
            continue
        result = json.loads(path.read_text())
        sign = "<=" if result["lower_is_better"] else ">="
        goal = "-" if result["target"] is None else f"{sign} {result['target']:g}"
        verdict = {True: "met", False: "MISSED", None: ""}[result["met"]]
        turns = "{:.3f} to {:.3f} ({})".format(*result["spread"], result["repeats"]) if result["spread"] else "once"
        row = f"{result['name']:34}{result['ratio']:9.3f}  {turns:>20}  {goal:>8}  {verdict:6}"
        lines.append(f"{row}  {result['what']}")
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for; the exit code tells whether every script ended well, not whether targets are met."""
    parser = frame.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS)
    options = parser.parse_args()
    flags = [flag for flag, asked in (("--quick", options.quick), ("--busy", options.busy)) if asked]
    since = time.time()
    failed = {}
    for name in options.only:
        code, seconds = run_one(name, flags=flags)
        if code:
            failed[name] = code
        print(f"  ({name} took {seconds:.0f} s)", flush=True)
    print("\n" + table(frame.RESULTS / "quick" if options.quick else frame.RESULTS, since))
    for name, code in failed.items():
        print(f"{name:34} FAILED with exit code {code}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
