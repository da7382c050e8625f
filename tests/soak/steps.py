"""One run left alone for thousands of steps: memory, descriptors, threads and disk.

Knows: when to look, and how much may grow.
Does not know: how it is measured (`watch`) and fitted (`judge`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
from attrs import asdict, define, field

from . import runs, watch
from .judge import Growth, growing, growth

KEEP = 2000
"""Episodes the store keeps. Steps make it full during the warm-up of 5,000."""
MIB, KIB = 2**20, 2**10
MEMORY_MIB = 2.0
"""In 1,000 steps, per process: 2 KiB a step is what one line of metrics.jsonl takes as text, and less than it takes as
Python's objects. A process that kept anything of every step, a record, an episode, a connection, would be over it."""
COUNT = 1.0
"""Descriptors or threads in 1,000 steps."""
FILES_KIB = 100.0
"""In 1,000 steps, each part of the run folder but two: a store that is full writes into the pages of what left, and of
checkpoints the last two stay."""
LINES_KIB = 4096.0
"""In 1,000 steps, each of the files that grow: metrics.jsonl by 2 to 3 KB a step, events.jsonl by far less."""
_LINES = ("metrics.jsonl", "events.jsonl")
_OWN = {
    "checkpoint.every_steps": 250,
    "checkpoint.every_s": 0,
    "episodes.keep": KEEP,
}


def soak(machine: runs.Machine, steps: int, every: int) -> dict[str, object]:
    """Make the run, look at it every so many steps, and judge."""
    run = machine.scratch / "steps"
    start = machine.new(run, f"steps={steps}", *(f"{key}={value}" for key, value in _OWN.items()))
    seen = _watch(machine, start, run, every)
    code, seconds = start.wait(), time.monotonic() - start.begun
    memory, counts, disk = seen.held("memory", MIB), seen.held("descriptors") | seen.held("threads"), seen.disk()
    lines = {name: disk[name] for name in _LINES}
    faults = [
        *([] if code == 0 else [f"it ends with {code}: {start.output()[-2000:]}"]),
        *growing(memory, MEMORY_MIB, "MiB"),
        *growing(counts, COUNT, "more"),
        *growing({name: each for name, each in disk.items() if name not in lines}, FILES_KIB, "KiB"),
        *growing(lines, LINES_KIB, "KiB"),
        *start.survivors(),
        *machine.left(),
        *(runs.not_recorded(run, steps) if code == 0 else []),
    ]
    bounds = {"memory_mib": MEMORY_MIB, "counts": COUNT, "files_kib": FILES_KIB, "lines_kib": LINES_KIB}
    return {
        "steps": steps,
        "seconds": round(seconds),
        "settings": {**dict(word.split("=") for word in runs.SETTINGS), **_OWN},
        "samples": len(seen.files["metrics.jsonl"]),
        "memory_mib": _plain(memory),
        "resident_mib": _plain(seen.held("resident", MIB)),
        "counts": _plain(counts),
        "disk_kib": _plain(disk),
        "disk_bytes_at_the_end": watch.footprint(run),
        "bounds_per_1000_steps": bounds,
        "faults": faults,
    }


@define
class _Seen:
    """What was seen, by process or file and by step."""

    holdings: dict[str, dict[int, watch.Holding]] = field(factory=lambda: defaultdict(dict))
    files: dict[str, dict[int, int]] = field(factory=lambda: defaultdict(dict))

    def held(self, what: str, unit: int = 1) -> dict[str, Growth]:
        """Return how one quantity grew in each process."""
        found = self.holdings.items()
        return {
            f"{what} of {who}": growth({at: getattr(h, what) / unit for at, h in each.items()}) for who, each in found
        }

    def disk(self) -> dict[str, Growth]:
        """Return how each part of the run folder grew; of those that came with the end there is nothing to tell."""
        found = self.files.items()
        return {name: growth({at: size / KIB for at, size in each.items()}) for name, each in found if len(each) > 2}


def _watch(machine: runs.Machine, start: runs.Start, run: Path, every: int) -> _Seen:
    seen, follow, looked = _Seen(), _Follower(run / "metrics.jsonl"), 0
    while start.process.poll() is None:
        step = follow.step()
        if step >= looked + every:
            looked = step
            machine.segments.look(start.mark)
            for role, process in watch.by_role(start.mark, start.process.pid).items():
                with suppress(psutil.Error):
                    seen.holdings[role][step] = watch.holding(process)
            for name, size in watch.footprint(run).items():
                seen.files[name][step] = size
        time.sleep(0.2)  # between looks at another process; nothing is assumed of its length
    return seen


class _Follower:
    """Counts the lines of a file that grows, without reading it again."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._lines = path, 0, 0

    def step(self) -> int:
        """Return how many there are."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
            self._at += len(new)
            self._lines += new.count(b"\n")
        return self._lines


def _plain(found: dict[str, Growth]) -> dict[str, dict[str, float]]:
    return {name: {key: round(value, 3) for key, value in asdict(each).items()} for name, each in found.items()}
