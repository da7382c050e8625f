"""Try a sample of a machine's edits of everything that is ours, and write what died into a folder that is committed.

    python tools/mutation.py --seed 22                    all subjects, two at once, into docs/conformance/mutation
    python tools/mutation.py --seed 22 --only 'train-*'   some of them
    python tools/mutation.py --again                      what lived and is no exception, with the checks of today
    python tools/mutation.py --table                      nothing but the table anew, after survivors were judged
    python tools/mutation.py --quick --out DIR            some of the cheap parts; exit code 1 if under 90% of them die

A part that has a whole report of that seed is not tried again: the same command goes on where it was ended; `--quick`
tries everything anew. `--again` asks survivors of every check, leaves the reports that are there and writes what became
of them beside those. A part that could not be tried gives exit code 1.

Knows: which parts there are, how many mutants of each, the table.
Does not know: how mutants are made (`areal conformance mutate`).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_conformance.mutate.mutants import Key
from areal_conformance.mutate.score import Score
from areal_conformance.mutate.triage import NAME, Triage, Verdict, read_triage, suggestion

ROOT = Path(__file__).parents[1]
LOOP = (
    "'areal_core.rollout.*' 'areal_core.fleet.*' "
    "areal_core.loop.train_loop areal_core.loop.checkpoint areal_core.loop.learner"
)
SUBJECTS = {
    "train-fsdp": (14, "--backend fsdp --ranks 2 --level 3 --spend 60"),
    "train-archon": (14, "--backend archon --ranks 2 --level 3 --spend 60"),
    "train-megatron": (14, "--backend megatron --ranks 2 --level 3 --spend 60"),
    "train-reference": (30, "--backend reference --role train --also areal_torch --spend 120"),
    "infer-reference": (30, "--backend reference --role infer --spend 120"),
    "loop": (40, f"--suite tests.loop_suite.target:SUITE --spend 240 --module {LOOP}"),
    "scheduler-local": (24, "--backend local --role scheduler --spend 120"),
    "transport-disk": (20, "--backend disk --role transport"),
    "transport-shm": (20, "--backend shm --role transport"),
    "transport-collective": (20, "--backend collective --role transport --ranks 2"),
    "workflow-single_turn": (20, "--backend single_turn --module areal_tasks.workflows.single_turn"),
    "workflow-multi_turn": (20, "--backend multi_turn --module areal_agents.workflows.multi_turn"),
}
"""Name -> how many mutants, and options; longest first."""
ENOUGH = 0.9
"""The share that has to die of those that are no exception."""
PACKAGES = ("src/*", "kits/*/src/*", "plugins/*/src/*")
QUICK = {
    "workflow-single_turn": (40, SUBJECTS["workflow-single_turn"][1]),
    "workflow-multi_turn": (20, SUBJECTS["workflow-multi_turn"][1]),
    "transport-disk": (30, SUBJECTS["transport-disk"][1]),
    "transport-shm": (20, SUBJECTS["transport-shm"][1]),
}
"""Those of continuous integration, which leaves out what `mutation.toml` excuses."""
HEADER = f"""# A sample of everything

Made with `make mutation-all`, which is `python tools/mutation.py --seed SEED`: single edits drawn by a machine, of each
part of this repository that is held to checks. [What that means](../../how-to/mutate.md);
[earlier draws](../mutation.md). `{NAME}` in the package of a module says of each survivor why it may live, or that it
is a gap. A mutant that lived is `excused` if nobody could tell it from the source as it is, or if no rule is about it.
`--spend` bounds what one mutant may take, so a score is a lower bound; what is tried again is asked of the checks that
were left out or written since.

"""
COLUMNS = (
    "| part | options | mutants | tried | killed | survived | unseen | excused | as drawn, 95% interval "
    "| tried again, with checks of today |\n|---|---|---|---|---|---|---|---|---|---|\n"
)


@frozen
class Found:
    """What became of the mutants of one part."""

    name: str
    record: dict[str, Any]
    again: dict[Key, str]
    """Survivors that were tried again -> how that ended."""
    triage: Triage

    def living(self) -> list[Key]:
        """Return what lived as it was drawn and is no exception."""
        return [key for key, fate in self._fates() if fate != "killed" and not self._excused(key)]

    def score(self, *, since: bool = False) -> Score:
        """Return the share that died, of those that are no exception; `since`: or that died when tried again."""
        died = [
            fate == "killed" or (since and self.again.get(key) == "killed")
            for key, fate in self._fates()
            if fate == "killed" or not self._excused(key)
        ]
        return Score(sum(died), len(died))

    def count(self, fate: str) -> int:
        """Return how many ended so, as drawn."""
        return sum(one == fate for _, one in self._fates())

    def excused(self) -> int:
        """Return how many lived and may."""
        return sum(fate != "killed" and self._excused(key) for key, fate in self._fates())

    def _fates(self) -> list[tuple[Key, str]]:
        return [(Key(**row["key"]), row["trial"]["fate"]) for row in self.record["rows"]]

    def _excused(self, key: Key) -> bool:
        return key in self.triage and self.triage[key].excused


def main() -> int:
    """Try what is asked for, then write the table."""
    asked = _asked()
    parts = QUICK if asked.quick else SUBJECTS
    names = [name for name in parts if any(fnmatch.fnmatch(name, one) for one in asked.only)]
    if not names:
        sys.exit(f"mutation.py: --only {' '.join(asked.only)} names none of {', '.join(parts)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    failed = False
    if not asked.table:
        try_one = _try_again if asked.again else _try
        with ThreadPoolExecutor(asked.jobs) as pool:
            failed = not all(list(pool.map(lambda name: try_one(name, asked), names)))
    found = [_found(name, asked.out) for name in parts if (asked.out / name / "mutation.json").exists()]
    (asked.out / "index.md").write_text(_page(found), encoding="utf-8")
    for one in found:
        print(f"{one.name}: {one.score()}; since: {one.score(since=True)}")
    print(f"all: {_sum(found)}; since: {_sum(found, since=True)}")
    return int(failed or (asked.quick and _sum(found).rate < ENOUGH))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs/conformance/mutation", help="the folder of the reports"
    )
    parser.add_argument(
        "--seed", type=int, default=22, help="of the draw; one that no check was written for is worth most"
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parts at once")
    parser.add_argument("--again", action="store_true", help="try survivors again that are no exceptions")
    parser.add_argument("--quick", action="store_true", help=f"only some of {', '.join(QUICK)}")
    parser.add_argument("--table", action="store_true", help="write the table only")
    return parser.parse_args()


def _try(name: str, asked: argparse.Namespace) -> bool:
    """Try the sample of one part, unless that was done; tell whether it could be."""
    report = asked.out / name / "mutation.json"
    if asked.quick:
        report.unlink(missing_ok=True)
    if report.exists():
        made = json.loads(report.read_text(encoding="utf-8"))
        if made["seed"] == asked.seed and not made["interrupted"]:
            return True
    number, options = QUICK[name] if asked.quick else SUBJECTS[name]
    options += " --skip-excused" if asked.quick else ""
    return _mutate(name, f"{options} --sample {number} --seed {asked.seed}", report.parent)


def _try_again(name: str, asked: argparse.Namespace) -> bool:
    """Try again what lived and is no exception; tell whether it could be."""
    if not (asked.out / name / "mutation.json").exists():
        return True
    found = _found(name, asked.out)
    left = [key for key in found.living() if found.again.get(key) != "killed"]
    if not left:
        return True
    gaps = ROOT / "build/mutation" / f"{name}.toml"
    gaps.parent.mkdir(parents=True, exist_ok=True)
    unjudged = suggestion(key for key in left if key not in found.triage)
    gaps.write_text(unjudged.replace('verdict = ""', 'verdict = "gap"').replace('why = ""', 'why = "not judged yet"'))
    options = re.sub(r"--spend [0-9]+", "", SUBJECTS[name][1])
    times = len(_again(name, asked.out)) + 1
    folder = asked.out / (f"{name}-again" if times == 1 else f"{name}-again-{times}")
    return _mutate(name, f"{options} --gaps --triage {os.path.relpath(gaps, ROOT)}", folder)


def _again(name: str, out: Path) -> list[Path]:
    """Return the reports on survivors of a part that were tried again, the latest last."""
    return sorted(out.glob(f"{name}-again*/mutation.json"), key=lambda path: (len(path.parent.name), path.parent.name))


def _mutate(name: str, options: str, folder: Path) -> bool:
    """Run the command, whose report goes into a folder, and tell whether it came to its end.

    What it says goes into build/mutation/NAME.log.
    """
    log = ROOT / "build/mutation" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    options += f" --report {os.path.relpath(folder, ROOT)}"  # the report has the command, others have other folders
    command = [str(Path(sys.executable).parent / "areal"), "conformance", "mutate", *shlex.split(options)]
    print(f"{name}: begins, {log}", flush=True)
    with log.open("w", encoding="utf-8") as file:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | {"PYTHONPATH": _path()},
        )
    if ended.returncode:
        print(f"{name}: ended with {ended.returncode}, {log}", flush=True)
    (folder / "survivors.toml").unlink(missing_ok=True)  # `mutation.md` has them
    return ended.returncode == 0


def _path() -> str:
    """Return where modules are looked for: here too, for the loop's suite is a test."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _found(name: str, out: Path) -> Found:
    """Read what became of a part's mutants, and what people say of them now."""
    record = json.loads((out / name / "mutation.json").read_text(encoding="utf-8"))
    again: dict[Key, str] = {}
    for path in _again(name, out):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        again |= {Key(**row["key"]): row["trial"]["fate"] for row in rows}
    return Found(name, record, again, _triage())


def _triage() -> Triage:
    """Read what people say of mutants now."""
    return read_triage(path for place in PACKAGES for path in sorted(ROOT.glob(f"{place}/{NAME}")))


def _page(found: Iterable[Found]) -> str:
    found = list(found)
    lines = []
    for one in found:
        record = one.record
        options = SUBJECTS[one.name][1]
        lines.append(
            f"| [{one.name}]({one.name}/mutation.md) | `{options} --sample {record['asked']} --seed {record['seed']}` "
            f"| {sum(record['population'].values())} | {len(record['rows'])} | {one.count('killed')} "
            f"| {one.count('survived')} | {one.count('unseen')} | {one.excused()} | {one.score()} "
            f"| {one.score(since=True)} |"
        )
    counts = " | ".join(str(sum(one.count(fate) for one in found)) for fate in ("killed", "survived", "unseen"))
    tried, every = (
        sum(len(one.record["rows"]) for one in found),
        sum(sum(one.record["population"].values()) for one in found),
    )
    excused = sum(one.excused() for one in found)
    lines.append(f"| all | | {every} | {tried} | {counts} | {excused} | {_sum(found)} | {_sum(found, since=True)} |")
    gaps = [
        f"- `{key.path}` {key.function}: `{key.before}` to `{key.after}`: {one.triage[key].why}"
        for one in found
        for key in one.living()
        if key in one.triage and one.triage[key].verdict is Verdict.GAP and one.again.get(key) != "killed"
    ]
    left = ["", "Gaps that are left:", "", *gaps] if gaps else []
    return HEADER + COLUMNS + "\n".join([*lines, *left, ""])


def _sum(found: Iterable[Found], *, since: bool = False) -> Score:
    scores = [one.score(since=since) for one in found]
    return Score(sum(score.killed for score in scores), sum(score.total for score in scores))


if __name__ == "__main__":
    sys.exit(main())
