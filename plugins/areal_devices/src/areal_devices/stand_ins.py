"""What answers for a device where there is none: told by whoever makes a process believe in the device.

    [areal.stand_ins]
    npu = areal_ascend.testing:STAND_INS          # in the metadata of what puts something in its place

Knows: where it is told.
Does not know: any stand-in.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib import metadata

GROUP = "areal.stand_ins"


def stand_in(name: str) -> str:
    """Return what stands in for a kind of device in this process and what that leaves open, "" for the real one."""
    return _told(tuple(sys.path)).get(name, "")


@functools.cache
def _told(_path: tuple[str, ...]) -> Mapping[str, str]:
    """Return what is told of each kind. Read once: every command builds every device, and metadata are many files."""
    told: dict[str, list[str]] = {}
    for entry in metadata.entry_points(group=GROUP):
        told.setdefault(entry.name, []).append(str(entry.load()))
    return {name: " ".join(sentences) for name, sentences in told.items()}
