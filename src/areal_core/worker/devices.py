"""Which accelerators workers may own, and who owns them now. No device is given out twice.

Public, for schedulers.

Knows: visible device ids, and how a process is confined to some of them.
Does not know: what runs on them; torch is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from areal_core.contract.errors import ResourceError
from areal_core.plugins.devices import seen_devices

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""Device kind -> the environment variable that confines a process to some devices of that kind."""

Devices = tuple[str, ...]


def visible(kind: str, environ: Mapping[str, str], root: Path = Path("/")) -> Devices:
    """Return the ids of the devices this process may use: those its environment names, else those the driver shows.

    As the drivers do, an id of -1 ends the list. `root` is the root of the file system, another one in tests.
    """
    named = environ.get(VISIBLE[kind])
    if named is None:
        return tuple(str(device.index) for device in seen_devices(root) if device.kind == kind)
    ids = [part.strip() for part in named.split(",")]
    end = next((number for number, part in enumerate(ids) if part in ("", "-1")), len(ids))
    return tuple(ids[:end])


def count_visible(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, int]:
    """Return how many devices of each kind this process may use, for the plan."""
    return {kind: len(visible(kind, environ, root)) for kind in VISIBLE}


class DevicePool:
    """The devices of this machine. One per scheduler."""

    def __init__(self, devices: Mapping[str, Devices]) -> None:
        self._free = {kind: list(ids) for kind, ids in devices.items()}

    @classmethod
    def of_machine(cls, environ: Mapping[str, str], root: Path = Path("/")) -> DevicePool:
        """Make a pool of everything visible."""
        return cls({kind: visible(kind, environ, root) for kind in VISIBLE})

    def take(self, kind: str, num_workers: int, per_worker: int) -> list[Devices]:
        """Return one tuple of ids per worker, all taken from the pool; empty tuples on the CPU.

        Raises:
            ResourceError: not enough are free, or the kind is unknown; nothing was taken.
        """
        if kind == "cpu":
            return [()] * num_workers
        if kind not in self._free:
            raise ResourceError(f"unknown device {kind!r}", why=f"devices are cpu, {', '.join(VISIBLE)}")
        free, wanted = self._free[kind], num_workers * per_worker
        if wanted > len(free):
            raise ResourceError(
                f"{wanted} {kind} devices are wanted and {len(free)} are free",
                why=f"{num_workers} workers with {per_worker} each; free: {', '.join(free) or 'none'}",
                fix=f"use fewer ranks or replicas, stop what holds the others, or extend {VISIBLE[kind]}",
            )
        taken, self._free[kind] = free[:wanted], free[wanted:]
        return [tuple(taken[rank * per_worker : (rank + 1) * per_worker]) for rank in range(num_workers)]

    def give_back(self, kind: str, devices: Sequence[Devices]) -> None:
        """Return what `take` gave, to be taken again."""
        if kind != "cpu":
            self._free[kind] += [device for ids in devices for device in ids]


def confinement(kind: str, devices: Devices) -> dict[str, str]:
    """Return the environment that lets a worker see its own devices only; on the CPU, no CUDA device at all."""
    if kind == "cpu":
        return {VISIBLE["cuda"]: ""}
    return {VISIBLE[kind]: ",".join(devices)}
