"""What makes this process an NPU machine. Torch calls it at the end of its own import.

Knows: the stand-ins there are.
Does not know: how the process came to this.
"""

from __future__ import annotations

import functools


@functools.cache
def install() -> tuple[object, ...]:
    """Put the stand-ins in place; what is returned keeps them there."""
    import torch_npu  # noqa: F401  before them: they replace what it registers

    from areal_ascend.testing import fusion, hccl, kernels

    hccl.install()
    return kernels.install(), fusion.install()
