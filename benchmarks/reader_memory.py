"""How the memory of everything that reads a run grows with the run: peak bytes at ten times the steps against one time.

A short run is made once; its record is written on with copies of its own steps and episodes. Every reader is a
process of its own; what an interpreter with its imports takes is in both sides.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import frame
import runs

from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Reader
from areal_episodes.schema import COLUMNS, FILE

TARGET = 1.25
STEPS = 4
PAGES = """
import re, sys
from pathlib import Path
from starlette.testclient import TestClient
from areal_view.app import make_app
client = TestClient(make_app(Path(sys.argv[1]), token="t"), base_url="http://127.0.0.1:8000")
client.cookies.set("areal_view", "t")
home = client.get("/").url.path
for page in ("", "/episodes", "/episodes?search=nothing", "/distributions", "/timeline"):
    assert client.get(home + page).status_code == 200, page
"""
WATCH = """
import os, sys
null = os.open(os.devnull, os.O_WRONLY)
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss)
sys.exit(status != 0)
"""
"""Starts a reader from a small process: to Linux, a child has had the memory of whoever started it."""
EVERY_EPISODE = """
import sys
from pathlib import Path
from areal_episodes.reader import Filter, Reader
with Reader(Path(sys.argv[1])) as reader:
    for facts in reader.facts(Filter()):
        reader.content(facts["id"]), reader.trajectories(facts["id"])
"""


def main() -> int:
    """Make the two runs, let every reader read both, write the result."""
    options = frame.parser(__doc__).parse_args()
    small, large = (20, 200) if options.quick else (100, 1_000)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = runs.starting_model("spell", folder, quick=True)
        runs.areal_train("spell", model, folder / "run", [f"steps={STEPS}", "evaluation.data=null"])
        sizes = {}
        for steps in (small, large):
            grow(folder / "run", folder / str(steps), steps // STEPS)
            sizes[steps] = (folder / str(steps) / FILE).stat().st_size
            with Reader(folder / str(steps)) as reader:
                print(f"{steps} steps, {reader.count()} episodes, {sizes[steps] >> 20} MiB of store", flush=True)
        before, after = (
            {name: peak(words) for name, words in readers(folder / str(steps)).items()} for steps in (small, large)
        )
    ratios = {name: after[name] / before[name] for name in before}
    for name, ratio in ratios.items():
        print(f"{name}: {before[name] >> 20} MiB, then {after[name] >> 20} MiB: {ratio:.2f}", flush=True)
    result = frame.Result(
        name="reader_memory",
        ratio=max(ratios.values()),
        target=TARGET,
        what="peak memory of the worst reader on ten times the steps / on one time",
        lower_is_better=True,
        details={
            "steps": [small, large],
            "store_bytes": list(sizes.values()),
            "peak_bytes": [before, after],
            "ratios": ratios,
        },
    )
    return frame.finish(result, quick=options.quick)


def _areal(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("areal")), *words]


def readers(run: Path) -> Mapping[str, Sequence[str]]:
    """Return the command of every reader of a run, by name."""
    return {
        "areal episodes --search": _areal("episodes", str(run), "--search", "nothing has this text"),
        "areal episodes --json": _areal("episodes", str(run), "--json", "--limit", "1000000"),
        "areal report": _areal("report", str(run), "--out", str(run / "page.html")),
        "areal trace": _areal("trace", str(run), "--out", str(run / "trace.json")),
        "areal view": [sys.executable, "-c", PAGES, str(run)],
        "Reader, every column": [sys.executable, "-c", EVERY_EPISODE, str(run)],
    }


def peak(command: Sequence[str]) -> int:
    """Run a reader and return the most memory it had, in bytes.

    Raises:
        SystemExit: it failed; what it said went to standard error.
    """
    done = subprocess.run([sys.executable, "-ISc", WATCH, *command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed")
    return int(done.stdout) * 1024


def grow(run: Path, to: Path, times: int) -> None:
    """Copy a finished run's record, and write its steps and episodes on until there are `times` as many."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoints", "model"))
    for name in ("metrics.jsonl", "events.jsonl"):
        lines = list(read_lines(run / name))
        with (to / name).open("w") as file:
            for number in range(times):
                file.writelines(json.dumps(_later(line, number)) + "\n" for line in lines)
    store = sqlite3.connect(to / FILE)
    chunks, tasks, groups = (
        store.execute(f"SELECT max({column}) FROM {table}").fetchone()[0]
        for column, table in (("id", "chunks"), ("rowid", "episodes"), ("task_index", "episodes"))
    )
    added = {"chunk": chunks, "task_index": groups + 1, "version": STEPS}
    columns = ", ".join(f"{name} + :number * {added[name]}" if name in added else name for name in COLUMNS)
    for number in range(1, times):
        given = {"number": number, "chunks": chunks, "last": tasks, "steps": STEPS}
        store.execute(
            "INSERT INTO chunks SELECT id + :number * :chunks, columns, checksum FROM chunks WHERE id <= :chunks", given
        )
        store.execute(
            f"INSERT INTO episodes ({', '.join(COLUMNS)}, step) SELECT {columns}, step + :number * :steps "
            "FROM episodes WHERE id <= :last",
            given,
        )
    store.commit()
    store.close()


def _later(line: Mapping[str, object], number: int) -> dict[str, object]:
    """Return a line as it would be that many copies later."""
    moved = {name: value + number * STEPS for name, value in line.items() if name == "step" and isinstance(value, int)}
    return {**line, **moved}


if __name__ == "__main__":
    raise SystemExit(main())
