"""Control groups: what all processes of a sandbox may use together, counted by the kernel.

Knows: both versions of the interface, where this process may make groups, what a group says about killed processes.
Does not know: who is in a group, or who removes it (`room`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from areal_agentic.sandbox import Limits

_MIB = 1 << 20
_OUR_PROCESSES = 4
"""Processes of a sandbox that are not the command's: those that enter it, and its init."""
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_NAME = "areal-sandbox"


@frozen(kw_only=True)
class Group:
    """The group of one sandbox: one folder, or one for each controller."""

    folders: tuple[Path, ...]
    counter: Path

    def kills(self) -> int:
        """Return how many processes of it the kernel killed for want of memory."""
        found = _KILLS.search(self.counter.read_text())
        return int(found[1]) if found else 0


@frozen(kw_only=True)
class Groups:
    """Where groups can be made. `memory` and `pids` are the same folder in version 2.

    Example: Groups(version=2, memory=Path("/sys/fs/cgroup/user.slice"), pids=Path("/sys/fs/cgroup/user.slice"))
    """

    version: int
    memory: Path
    pids: Path

    def make(self, limits: Limits) -> Group:
        """Make the group of a sandbox. Its files are in memory too, so they are added to what it may take.

        Raises:
            OSError: it cannot be made.
        """
        name = f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"
        folders = tuple(dict.fromkeys((self.memory / name, self.pids / name)))
        try:
            return self._make(folders, limits)
        except OSError:
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise

    def _make(self, folders: tuple[Path, ...], limits: Limits) -> Group:
        for folder in folders:
            folder.mkdir()
        memory = (limits.memory_mb + limits.disk_mb) * _MIB
        if self.version == 2:
            bounds: Mapping[str, object] = {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 1}
            counter = "memory.events"
        else:
            bounds = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
            counter = "memory.oom_control"
        for file, bound in bounds.items():
            if (folders[0] / file).exists():  # a kernel without swap has no bound of it
                (folders[0] / file).write_text(str(bound))
        (folders[-1] / "pids.max").write_text(str(limits.processes + _OUR_PROCESSES))
        return Group(folders=folders, counter=folders[0] / counter)


def find_groups(root: Path = Path("/")) -> Groups | None:
    """Return where this process may make groups and put processes into them, None for nowhere. Tries it."""
    return next((groups for groups in _candidates(root) if _works(groups)), None)


def joining(group: Group) -> str:
    """Return shell text that puts the shell into a group."""
    return "".join(f'echo $$ > "{folder}/cgroup.procs" && ' for folder in group.folders)


def _candidates(root: Path) -> Iterator[Groups]:
    mounted = _mounts(root)
    own = _own(root)
    if "memory" in mounted and "pids" in mounted and "memory" in own and "pids" in own:
        yield Groups(version=1, memory=_place(mounted, own, "memory"), pids=_place(mounted, own, "pids"))
    if "" in mounted and "" in own:
        top, here = mounted[""][1], _place(mounted, own, "")
        for folder in (here, *here.parents):
            if {"memory", "pids"} <= set(_read(folder / "cgroup.subtree_control").split()):
                yield Groups(version=2, memory=folder, pids=folder)
            if folder == top:
                return


def _mounts(root: Path) -> Mapping[str, tuple[str, Path]]:
    """Return controller -> the group that its mount shows, and where; the empty one is version 2."""
    found: dict[str, tuple[str, Path]] = {}
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        shown, place = before.split()[3:5]
        kind, _source, options = after.split()[:3]
        if kind == "cgroup2":
            found[""] = (shown, root / place.lstrip("/"))
        elif kind == "cgroup":
            found |= {name: (shown, root / place.lstrip("/")) for name in options.split(",")}
    return found


def _own(root: Path) -> Mapping[str, str]:
    """Return controller -> the group this process is in."""
    lines = [line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines()]
    return {name: group for _, names, group in lines for name in names.split(",")}


def _place(mounted: Mapping[str, tuple[str, Path]], own: Mapping[str, str], controller: str) -> Path:
    """Return the folder of this process's group; the top of the mount, if the mount does not show it."""
    shown, place = mounted[controller]
    below = os.path.relpath(own[controller], shown)
    return place if below.startswith("..") else place / below


def _works(groups: Groups) -> bool:
    try:
        group = groups.make(Limits())
    except OSError:
        return False
    try:
        join = joining(group) + "true"
        return subprocess.run(["sh", "-c", join], capture_output=True, check=False).returncode == 0
    finally:
        for folder in group.folders:
            folder.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
