"""Ascend NPUs.

Knows: the driver's device files, and what HCCL can reduce with.
Does not know: whether CANN fits; `areal-ascend` examines that.
"""

from __future__ import annotations

import functools
from pathlib import Path

from areal_core.contract.device import Device, SeenDevice
from areal_core.plugins.install import pip_install
from areal_devices.files import numbers
from areal_devices.stand_ins import stand_in
from areal_devices.torch_memory import free_and_total


def npu(root: Path = Path("/")) -> Device:
    """Return the NPUs; `root` is the root of the file system, another one in tests."""
    return Device(
        name="npu",
        vendor="Huawei",
        torch_type="npu",
        torch_plugin="torch_npu",
        torch_fix=_fix(),
        see=lambda environ: [SeenDevice(id=str(n), name="Ascend NPU") for n in numbers(root / "dev", "davinci")],
        visible_variables=("ASCEND_RT_VISIBLE_DEVICES",),
        collective="hccl",
        reductions=("sum", "product", "min", "max"),
        memory=free_and_total,
        resource="NPU",
        stand_in=stand_in("npu"),
    )


@functools.cache  # reads files, and every command builds every device
def _fix() -> str:
    source = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    return f"{pip_install('areal-ascend[engine]')}, and source set_env.sh of the CANN toolkit, as in `{source}`"
