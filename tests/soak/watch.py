"""What a run holds while it lives and leaves when it ends, seen from outside.

Knows: processes by the mark in their environment, their memory, descriptors and threads, /dev/shm, bytes of a folder.
Does not know: how runs are started, or how much is too much (`judge`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from attrs import define, field, frozen
from tests.exactly_once.killed_run import CONTROLLER, REPLICA, REWARD, TRAINER

MARK = "AREAL_SOAK"
"""A variable of the environment, which every process of a run inherits, whoever started it."""
_ROLES = {"actor-": TRAINER, "rollout": REPLICA}
_SHARED = Path("/dev/shm")


@frozen(kw_only=True)
class Holding:
    """What one process holds.

    Example: Holding(memory=181_403_648, resident=331_403_648, descriptors=31, threads=9)
    """

    memory: int
    """Bytes it allocated and that are resident. Pages of files, of libraries above all, are left out where the system
    tells them apart: what of them counts for a process depends on its neighbours."""
    resident: int
    """Bytes with those pages, each counted in full."""
    descriptors: int
    threads: int


def marked(mark: str) -> Iterator[psutil.Process]:
    """Yield every live process that has the mark."""
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                yield process


def by_role(mark: str, controller: int) -> dict[str, psutil.Process]:
    """Return the live processes of a run by role; watchdogs are left out."""
    found: dict[str, psutil.Process] = {}
    for process in marked(mark):
        with suppress(OSError, psutil.Error):
            if process.pid == controller:
                found[CONTROLLER] = process
            elif process.ppid() == controller and (role := _role(process)) is not None:
                found[role] = process
    return found


def holding(process: psutil.Process) -> Holding:
    """Measure one process."""
    resident = int(process.memory_info().rss)
    status = Path(f"/proc/{process.pid}/status")
    found = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else []
    return Holding(
        memory=1024 * sum(map(int, found)) if found else resident,
        resident=resident,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
    )


def footprint(run: Path) -> Mapping[str, int]:
    """Return the bytes of a run folder by its first names, `checkpoints`, `logs` and files alike."""
    sizes = {entry.name: _size(entry) for entry in run.iterdir()}
    store = sum(sizes.pop(name, 0) for name in list(sizes) if name.startswith("episodes.sqlite"))
    return {**sizes, "episodes.sqlite": store}


@define
class Segments:
    """Names in /dev/shm that belong to runs: a process of theirs mapped them, or they carry its process id."""

    _mine: set[str] = field(factory=set)
    _pids: set[int] = field(factory=set)

    def look(self, mark: str) -> None:
        """Remember what processes of a run have now."""
        for process in marked(mark):
            self._pids.add(process.pid)
            with suppress(OSError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                self._mine |= set(re.findall(rf"{_SHARED}/(\S+)", maps))

    def left(self) -> list[str]:
        """Return those that are still there."""
        there = [path.name for path in _SHARED.iterdir()] if _SHARED.is_dir() else []
        return sorted(
            n
            for n in there
            if n in self._mine or self._pids.intersection(map(int, re.findall(r"(?<![^\W_])\d+(?![^\W_])", n)))
        )


def _role(process: psutil.Process) -> str | None:
    if "areal_local.rewards.process_main" in process.cmdline():
        return REWARD
    output = Path(f"/proc/{process.pid}/fd/1").readlink().name
    return next((role for start, role in _ROLES.items() if output.startswith(start)), None)


def _size(path: Path) -> int:
    total = 0
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with suppress(OSError):  # a checkpoint that is renamed or deleted meanwhile
            total += each.stat().st_size if each.is_file() else 0
    return total
