"""What torch calls cuda: GPUs of NVIDIA, and of AMD through ROCm.

Knows: where both drivers leave their traces, and which variables confine a process to some GPUs.
Does not know: torch; its module is handed to what reads memory and identities.

A torch build drives GPUs of one vendor. On a machine that has both, for example an AMD processor with graphics beside
NVIDIA cards, NVIDIA's are taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_core.contract.device import Device, SeenDevice
from areal_devices.files import numbers
from areal_devices.stand_ins import stand_in
from areal_devices.torch_memory import free_and_total

_UNNAMED = "NVIDIA device"
_NODES = "sys/class/kfd/kfd/topology/nodes"
_REDUCTIONS = ("sum", "avg", "product", "min", "max")
"""Of NCCL, and of RCCL, which torch calls nccl as well."""


def cuda(root: Path = Path("/")) -> Device:
    """Return the GPUs of the vendor whose driver is loaded; NVIDIA's if none is.

    Args:
        root: the root of the file system; another one in tests.
    """
    return amd(root) if _amd(root) and not _nvidia(root) else nvidia(root)


def nvidia(root: Path = Path("/")) -> Device:
    """Return the GPUs of NVIDIA."""
    return Device(
        name="cuda",
        vendor="NVIDIA",
        torch_type="cuda",
        see=lambda environ: _nvidia(root),
        visible_variables=("CUDA_VISIBLE_DEVICES",),
        collective="nccl",
        reductions=_REDUCTIONS,
        memory=free_and_total,
        identity=_uuid,
        ipc=True,
        resource="GPU",
        stand_in=stand_in("cuda"),
    )


def amd(root: Path = Path("/")) -> Device:
    """Return the GPUs of AMD.

    HIP reads both variables, and engines refuse to start where they differ. It takes an empty one for one that is
    not set, so that only -1 hides every GPU.
    """
    variables = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return Device(
        name="cuda",
        vendor="AMD",
        torch_type="cuda",
        torch_fix="install torch's ROCm build, which is another than the one the package index gives by default",
        see=lambda environ: _within(_amd(root), environ),
        visible_variables=variables,
        hidden=dict.fromkeys(variables, "-1"),
        collective="nccl",
        reductions=_REDUCTIONS,
        memory=free_and_total,
        identity=_uuid,
        ipc=True,
        resource="GPU",
        stand_in=stand_in("cuda"),
    )


def _nvidia(root: Path) -> list[SeenDevice]:
    """Read the driver's folder and the device files: containers that hide the one still have the other."""
    cards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    names = [_model(card) for card in cards]
    names += [_UNNAMED] * (len(numbers(root / "dev", "nvidia")) - len(names))
    return [SeenDevice(id=str(number), name=name) for number, name in enumerate(names)]


def _model(information: Path) -> str:
    try:
        text = information.read_text(errors="replace")
    except OSError:
        return _UNNAMED
    match = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else _UNNAMED


def _amd(root: Path) -> list[SeenDevice]:
    """Count the nodes of the compute driver that are GPUs and whose render file this process's container has."""
    if not (root / "dev/kfd").exists():
        return []
    nodes = sorted((root / _NODES).glob("[0-9]*"), key=lambda path: int(path.name))
    cards = [facts for facts in map(_properties, nodes) if int(facts.get("simd_count", "0")) > 0]
    here = [facts for facts in cards if (root / f"dev/dri/renderD{facts.get('drm_render_minor')}").exists()]
    return [SeenDevice(id=str(number), name=f"AMD {_architecture(facts)}") for number, facts in enumerate(here)]


def _properties(node: Path) -> dict[str, str]:
    try:
        lines = (node / "properties").read_text().splitlines()
    except OSError:  # of a card that belongs to another container
        return {}
    return dict(line.split(maxsplit=1) for line in lines if len(line.split()) == 2)


def _architecture(facts: Mapping[str, str]) -> str:
    """Return `gfx90a` of the driver's 90010: two digits each, the last two in base 16."""
    version = int(facts.get("gfx_target_version", "0"))
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else "device"


def _within(seen: list[SeenDevice], environ: Mapping[str, str]) -> list[SeenDevice]:
    """Return what ROCR_VISIBLE_DEVICES leaves: it is read before HIP, which numbers what is left anew."""
    named = environ.get("ROCR_VISIBLE_DEVICES")
    if not named:
        return seen
    left = len([part for part in named.split(",") if part.strip()])
    return [SeenDevice(id=str(number), name="AMD device") for number in range(left)]


def _uuid(module: Any, index: int) -> str:
    """Any: torch.cuda."""
    return str(module.get_device_properties(index).uuid)
