"""An NPU without one: the installed torch_npu over host memory, for tests of what is around the kernels.

    python -m areal_ascend.testing pytest -m ascend plugins/areal_ascend/tests

Real: torch_npu's Python and C++ code, its operators' schemas and derivatives, devices, streams, memory statistics.
Not real: what CANN, HCCL and the NPU do. Numbers come from the CPU's kernels and from gloo.
"""

from __future__ import annotations

STAND_INS = (
    "The real torch_npu ran over stand-ins for CANN in host memory, the CPU's kernels and HCCL over gloo. Left open: "
    "the numbers of CANN's kernels and which of them are deterministic, HCCL's wires and time-outs, what runs while "
    "a copy or a collective is under way, memory limits, speed."
)
"""What a report says of a run over them (`areal_devices.stand_ins`)."""
