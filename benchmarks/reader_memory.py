"""How the memory of everything that reads a run grows with the run: peak bytes at ten times the steps against one time.

A short run is made once; its record is written on with copies of its own steps and episodes. Every reader is a
process of its own; what an interpreter with its imports takes is in both sides. A replay makes two steps and a resume
one: what they read of the run at their start and write at their end is measured, in the controller alone.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import frame
import runs

from areal_core.loop.run_folder import RunFolder
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Reader
from areal_episodes.schema import COLUMNS, FILE

STEPS = 4
OWN_PEAK = """
import atexit, os, resource, sys
from pathlib import Path
peak = Path(os.environ.pop("PEAK_FILE"))
atexit.register(lambda: peak.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)))
"""
"""Begins every reader; what its workers have is not counted."""
COMMAND = """
from areal_core.cli.main import main
sys.exit(main())
"""
PAGES = """
import re
from starlette.testclient import TestClient
from areal_view.app import make_app
client = TestClient(make_app(Path(sys.argv[1]), token="t"), base_url="http://127.0.0.1:8000")
client.cookies.set("areal_view", "t")
home = client.get("/").url.path
for page in ("", "/episodes", "/episodes?search=nothing", "/distributions", "/timeline"):
    assert client.get(home + page).status_code == 200, page
"""
EVERY_EPISODE = """
from areal_episodes.reader import Filter, Reader
with Reader(Path(sys.argv[1])) as reader:
    for facts in reader.facts(Filter()):
        reader.content(facts["id"]), reader.trajectories(facts["id"])
"""
WATCH = """
import os, sys
null = os.open(os.devnull, os.O_WRONLY)
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
sys.exit(os.wait4(child, 0)[1] != 0)
"""
"""Starts a reader from a small process: to Linux, a child has had the memory of whoever started it."""


def main() -> int:
    """Make the two runs, let every reader read both, write the result."""
    parser = frame.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of every reader, in turns; medians count")
    options = parser.parse_args()
    small, large, repeats = (20, 200, 1) if options.quick else (100, 1_000, options.repeats)
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
        peaks: dict[int, dict[str, list[int]]] = {small: defaultdict(list), large: defaultdict(list)}
        for _ in range(repeats):
            for steps, found in peaks.items():
                for name, words in readers(folder / str(steps)).items():
                    found[name].append(peak(*words))
    ratios = {name: frame.Figure.of(peaks[large][name], peaks[small][name]) for name in peaks[small]}
    for name, figure in ratios.items():
        print(f"{name}: {peaks[small][name][-1] >> 20} MiB, then {peaks[large][name][-1] >> 20}: {figure}", flush=True)
    result = frame.Result(
        name="reader_memory",
        figure=frame.largest(ratios.values()),
        what="peak memory of the worst reader on ten times the steps / on one time",
        details={
            "steps": [small, large],
            "store_bytes": list(sizes.values()),
            "peak_bytes": list(peaks.values()),
            "ratios": ratios,
        },
    )
    return frame.finish(result, quick=options.quick)


def readers(run: Path) -> Mapping[str, Sequence[str]]:
    """Return the program and the arguments of every reader of a run, by name; the last one writes it on."""
    return {
        "areal episodes --search": (COMMAND, "episodes", str(run), "--search", "nothing has this text"),
        "areal episodes --json": (COMMAND, "episodes", str(run), "--json", "--limit", "1000000"),
        "areal report": (COMMAND, "report", str(run), "--out", str(run / "page.html")),
        "areal trace": (COMMAND, "trace", str(run), "--out", str(run / "trace.json")),
        "areal view": (PAGES, str(run)),
        "Reader, every column": (EVERY_EPISODE, str(run)),
        "areal replay": (COMMAND, "replay", str(run), "--to-step", "2", "actor.optimizer.lr=1e-5"),
        "areal train --resume": (COMMAND, "train", "--resume", str(run), f"steps={_steps(run) + 1}"),
    }


def _steps(run: Path) -> int:
    latest = RunFolder(run).latest()
    return 0 if latest is None else int(latest.name.rpartition("-")[2])


def peak(program: str, *arguments: str) -> int:
    """Run a reader and return the most memory it had itself, in bytes.

    Raises:
        SystemExit: it failed; what it said went to standard error.
    """
    with tempfile.NamedTemporaryFile() as file:
        words = [sys.executable, "-ISc", WATCH, sys.executable, "-c", OWN_PEAK + program, *arguments]
        if subprocess.run(words, env={**os.environ, "PEAK_FILE": file.name}).returncode:
            raise SystemExit(f"{' '.join(arguments)} failed")
        return int(file.read()) * 1024


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
    _save_as(to, run, times, added["task_index"])


def _save_as(to: Path, run: Path, times: int, groups: int) -> None:
    """Have the checkpoint of the short run stand at the end of the long one, which handed over as many groups."""
    last = RunFolder(run).latest()
    assert last is not None, "the short run ended, so it is saved"
    saved = to / "checkpoints" / f"step-{STEPS * times:06d}"
    shutil.copytree(last, saved)
    progress = json.loads((saved / "loop.json").read_text())
    progress["version"] = progress["tasks"]["version"] = STEPS * times
    progress["record"] = _later(progress["record"], times - 1)
    tasks = progress["tasks"]["tasks"]
    tasks["frontier"] += groups * (times - 1)
    tasks["used"] = [index + groups * (times - 1) for index in tasks["used"]]
    (saved / "loop.json").write_text(json.dumps(progress))


def _later(line: Mapping[str, object], number: int) -> dict[str, object]:
    """Return a line as it would be that many copies later."""
    moved = {name: value + number * STEPS for name, value in line.items() if name == "step" and isinstance(value, int)}
    return {**line, **moved}


if __name__ == "__main__":
    raise SystemExit(main())
