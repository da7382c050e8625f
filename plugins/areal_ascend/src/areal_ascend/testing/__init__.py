"""An NPU without one: the installed torch_npu over host memory, for tests of what is around the kernels.

    python -m areal_ascend.testing pytest -m ascend plugins/areal_ascend/tests

Real: torch_npu's Python and C++ code, its operators' schemas and derivatives, devices, streams, memory statistics.
Not real: what CANN, HCCL and the NPU do. Numbers come from the CPU's kernels and from gloo.
"""
