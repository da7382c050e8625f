"""What answers for a device where there is none: told by whoever puts something in its place.

    [areal.stand_ins]
    npu = areal_ascend.testing:STAND_INS          # in the metadata of what makes a process believe in the device

Knows: where it is told.
Does not know: any stand-in, and imports no torch.
"""

from __future__ import annotations

from importlib import metadata

GROUP = "areal.stand_ins"


def stand_ins(device: str) -> str:
    """Return what stands in for a kind of device in this process and what that leaves open, "" for the real one."""
    return " ".join(str(entry.load()) for entry in metadata.entry_points(group=GROUP, name=device))
