"""The GPU of an Apple computer: one, shared by every process, and never confined.

Knows: how a Mac is told from other machines.
Does not know: what Metal can compute.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from areal_core.contract.device import Device, DeviceMemory, SeenDevice
from areal_devices.stand_ins import stand_in

_FRAMEWORK = "System/Library/Frameworks/MetalPerformanceShaders.framework"


def mps(root: Path = Path("/"), machine: str = platform.machine()) -> Device:
    """Return the GPU. Ranks on it meet over gloo, which torch takes for it.

    Args:
        root: the root of the file system; another one in tests.
        machine: the processor; older ones, of Intel, have no GPU that counts.
    """
    seen = [SeenDevice(id="0", name="Apple GPU")] if machine == "arm64" and (root / _FRAMEWORK).exists() else []
    return Device(
        name="mps",
        vendor="Apple",
        torch_type="mps",
        see=lambda environ: seen,
        reductions=("sum", "product", "min", "max"),
        memory=_memory,
        resource="GPU",
        stand_in=stand_in("mps"),
    )


def _memory(module: Any, index: int) -> DeviceMemory:
    """Any: torch.mps."""
    total = int(module.recommended_max_memory())
    return DeviceMemory(free=max(total - int(module.driver_allocated_memory()), 0), total=total)
