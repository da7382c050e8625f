"""Discrete GPUs of Intel.

Knows: how they differ from the graphics of a processor, and which variables Level Zero and SYCL read.
Does not know: whether torch was built for them.

A processor's own graphics are not counted, or `device: auto` would take them on every second laptop. Who wants them
names them: ZE_AFFINITY_MASK=0.
"""

from __future__ import annotations

from pathlib import Path

from areal_core.contract.device import Device, SeenDevice
from areal_devices.files import numbers
from areal_devices.stand_ins import stand_in
from areal_devices.torch_memory import free_and_total

_INTEL = "0x8086"
_INTEGRATED = "0000:00:02.0"
"""Where a processor's own graphics are on the PCI bus, always."""


def xpu(root: Path = Path("/")) -> Device:
    """Return the GPUs of Intel; `root` is the root of the file system, another one in tests."""
    return Device(
        name="xpu",
        vendor="Intel",
        torch_type="xpu",
        torch_fix="install torch's XPU build, which is another than the one the package index gives by default",
        see=lambda environ: _see(root),
        visible_variables=("ZE_AFFINITY_MASK",),
        # Level Zero takes an empty mask for none; SYCL, through which torch sees devices, can be told to take others.
        hidden={"ONEAPI_DEVICE_SELECTOR": "*:cpu"},
        collective="xccl",
        reductions=("sum", "product", "min", "max"),
        memory=free_and_total,
        resource="GPU",
        stand_in=stand_in("xpu"),
    )


def _see(root: Path) -> list[SeenDevice]:
    links = [root / f"sys/class/drm/renderD{number}/device" for number in numbers(root / "dev/dri", "renderD")]
    cards = [link for link in links if _read(link / "vendor") == _INTEL and link.resolve().name != _INTEGRATED]
    return [SeenDevice(id=str(number), name=f"Intel {_read(card / 'device')}") for number, card in enumerate(cards)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
