"""Which accelerators this machine shows, told by the file system and not by torch.

Knows: where the drivers of NVIDIA and Ascend leave their traces.
Does not know: whether an engine can use them; `areal doctor --deep` finds out.
"""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen


@frozen(kw_only=True)
class Device:
    """One accelerator: kind is `cuda` or `npu`."""

    kind: str
    index: int
    name: str


def seen_devices(root: Path = Path("/")) -> tuple[Device, ...]:
    """List the accelerators whose drivers are loaded, by kind and index; empty on a plain CPU machine.

    `root` is the root of the file system, another one in tests. Containers that hide
    /proc/driver/nvidia still have the device files, so both are read.
    """
    return (*_nvidia(root), *_ascend(root))


def seen_kinds(root: Path = Path("/")) -> frozenset[str]:
    """Return the device kinds of this machine: always `cpu`, and `cuda` or `npu` where seen."""
    return frozenset({"cpu", *(device.kind for device in seen_devices(root))})


def _nvidia(root: Path) -> list[Device]:
    cards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    names = [_model(card) for card in cards]
    indices = _indices(root / "dev", "nvidia")
    count = max(len(names), len(indices))
    names += ["NVIDIA device"] * (count - len(names))
    return [Device(kind="cuda", index=index, name=name) for index, name in enumerate(names)]


def _ascend(root: Path) -> list[Device]:
    return [Device(kind="npu", index=index, name="Ascend NPU") for index in _indices(root / "dev", "davinci")]


def _indices(folder: Path, stem: str) -> list[int]:
    matches = (re.fullmatch(rf"{stem}(\d+)", path.name) for path in folder.glob(f"{stem}[0-9]*"))
    return sorted(int(match[1]) for match in matches if match)


def _model(information: Path) -> str:
    try:
        text = information.read_text(errors="replace")
    except OSError:
        return "NVIDIA device"
    match = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else "NVIDIA device"
