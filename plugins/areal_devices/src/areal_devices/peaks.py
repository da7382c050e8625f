"""How many operations a second a device can do at most, as its maker says: what a share of peak is a share of.

Knows: matrix products in bfloat16, dense, by the name torch gives a device.
Does not know: other precisions, other devices, slices of a device (MIG). Nothing is guessed: what is not here is None.
"""

from __future__ import annotations

import re

_TERA = 1e12

_BFLOAT16 = {
    r"NVIDIA A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe": 312.0,  # NVIDIA A100 data sheet
    r"NVIDIA H100 80GB HBM3": 989.5,  # NVIDIA H100 data sheet, SXM: half of 1,979 with sparsity
    r"NVIDIA H100 PCIe": 756.5,  # the same, PCIe: half of 1,513
    r"NVIDIA H100 NVL": 835.5,  # the same, NVL: half of 1,671
    r"NVIDIA H200": 989.5,  # NVIDIA H200 data sheet, SXM: half of 1,979
    r"NVIDIA H200 NVL": 835.5,  # the same, NVL: half of 1,671
    r"NVIDIA B200": 2250.0,  # NVIDIA Blackwell data sheet, HGX B200: half of 4,500
    r"NVIDIA L40S": 362.05,  # NVIDIA L40S data sheet
    r"AMD Instinct MI300X": 1307.4,  # AMD Instinct MI300X data sheet
}
"""Names as `torch.cuda.get_device_name` gives them -> 10**12 operations a second, without sparsity."""


def peak_flops(name: str, dtype: str) -> float | None:
    """Return the floating-point operations a second of matrix products on a device of this name; None if not known.

    Args:
        name: as torch gives it, for example `NVIDIA H100 80GB HBM3`.
        dtype: what the products are computed in, for example `bfloat16`.
    """
    if dtype != "bfloat16":
        return None
    return next((peak * _TERA for known, peak in _BFLOAT16.items() if re.fullmatch(known, name)), None)
