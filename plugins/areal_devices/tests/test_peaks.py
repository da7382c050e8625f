"""The peak of a device is what its maker says of exactly this device, or nothing."""

from __future__ import annotations

import pytest

from areal_devices.peaks import peak_flops


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0e12),
        ("NVIDIA A100 80GB PCIe", 312.0e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA H200 NVL", 835.5e12),
    ],
)
def test_variants_of_one_name_have_peaks_of_their_own(name: str, peak: float) -> None:
    """Without sparsity, which training does not have."""
    assert peak_flops(name, "bfloat16") == peak


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100", "NVIDIA GeForce RTX 4090", "cpu", ""]
)
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    """Nor is a slice of a device taken for the whole, or another precision for bfloat16."""
    assert peak_flops(name, "bfloat16") is None
    assert peak_flops("NVIDIA H200", "float32") is None
