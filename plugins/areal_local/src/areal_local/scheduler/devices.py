"""Which accelerators workers may own, and who owns them now. No device is given out twice.

Public, for schedulers.

Knows: visible device ids, and how a process is confined to some of them.
Does not know: any kind of device; the role `device` tells. Torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from areal_core.contract.device import CPU, Device
from areal_core.contract.errors import ResourceError

Devices = tuple[str, ...]


class DevicePool:
    """The devices of this machine. One per scheduler."""

    def __init__(self, devices: Mapping[str, Devices], kinds: Iterable[Device] = ()) -> None:
        """Hold some devices.

        Args:
            devices: the ids to give out, by kind.
            kinds: every kind a worker could see, so that it is confined to its own.
        """
        self.free = {kind: list(ids) for kind, ids in devices.items()}
        self._kinds = tuple(kinds)

    @classmethod
    def of_machine(cls, kinds: Iterable[Device], environ: Mapping[str, str]) -> DevicePool:
        """Make a pool of everything visible of some kinds."""
        known = tuple(kinds)
        return cls({device.name: device.visible(environ) for device in known}, known)

    def take(self, kind: str, num_workers: int, per_worker: int) -> list[Devices]:
        """Return one tuple of ids per worker, all taken from the pool; empty tuples on the CPU.

        Raises:
            ResourceError: not enough are free, or the kind is unknown; nothing was taken.
        """
        if kind == CPU:
            return [()] * num_workers
        if kind not in self.free:
            raise ResourceError(f"unknown device {kind!r}", why=f"devices are {', '.join((CPU, *self.free))}")
        free, wanted = self.free[kind], num_workers * per_worker
        if wanted > len(free):
            names = [name for device in self._kinds if device.name == kind for name in device.visible_variables[:1]]
            raise ResourceError(
                f"{wanted} {kind} devices are wanted and {len(free)} are free",
                why=f"{num_workers} workers with {per_worker} each; free: {', '.join(free) or 'none'}",
                fix=", or extend ".join(["use fewer ranks or replicas, stop what holds the others", *names]),
            )
        taken, self.free[kind] = free[:wanted], free[wanted:]
        return [tuple(taken[rank * per_worker : (rank + 1) * per_worker]) for rank in range(num_workers)]

    def give_back(self, kind: str, devices: Sequence[Devices]) -> None:
        """Return what `take` gave, to be taken again."""
        if kind != CPU:
            self.free[kind] += [device for ids in devices for device in ids]

    def confinement(self, kind: str, devices: Devices) -> dict[str, str]:
        """Return the environment in which a worker sees its own devices, and none of any other kind."""
        own = [device for device in self._kinds if device.name == kind]
        hidden = {key: value for other in self._kinds if other not in own for key, value in other.confine(()).items()}
        return hidden | {key: value for device in own for key, value in device.confine(devices).items()}
