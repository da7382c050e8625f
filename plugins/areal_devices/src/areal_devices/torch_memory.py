"""The memory of a device, as torch tells it.

Knows: the one function that torch's modules of devices have alike.
Does not know: any device. Torch is not imported: its module is handed in.
"""

from __future__ import annotations

from typing import Any

from areal_core.contract.device import DeviceMemory


def free_and_total(module: Any, index: int) -> DeviceMemory:
    """Return the bytes of one device. Any: torch.cuda, torch.npu or torch.xpu."""
    free, total = module.mem_get_info(index)
    return DeviceMemory(free=int(free), total=int(total))
