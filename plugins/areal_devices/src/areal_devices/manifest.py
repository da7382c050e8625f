"""The devices of this distribution, as the registry sees them."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest


def _manifest(name: str, factory: str, summary: str) -> Manifest:
    return Manifest(
        role="device",
        name=name,
        contract=(1, 0),
        factory=f"areal_devices.{factory}",
        devices=(name,),
        summary=summary,
    )


CUDA = _manifest("cuda", "cuda:cuda", "GPUs of NVIDIA, and of AMD through ROCm, which torch calls cuda as well")
NPU = _manifest("npu", "npu:npu", "Ascend NPUs, through torch_npu")
XPU = _manifest("xpu", "xpu:xpu", "discrete GPUs of Intel")
MPS = _manifest("mps", "mps:mps", "the GPU of an Apple computer")
