"""The stand-ins: real where they say so, and loud where they do not compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ascend


def test_cann_has_every_function_that_torch_npu_is_linked_to(tmp_path: Path) -> None:
    """None is left to be refused; take one away from the source and it is told."""
    from areal_ascend.testing import libraries

    assert libraries.build(tmp_path) == ()
    assert {"aclrtMalloc", "aclopCompileAndExecute"} <= libraries.wanted()


def test_without_the_folder_torch_npu_does_not_load() -> None:
    """What these tests run on is not an NPU machine: without the stand-ins the same interpreter says so."""
    environ = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

    ended = subprocess.run([sys.executable, "-c", "import torch_npu"], env=environ, capture_output=True, text=True)

    assert ended.returncode != 0
    assert "libhccl.so" in ended.stderr


def test_numbers_are_the_cpus_and_bytes_are_on_the_device() -> None:
    """Views, in-place changes, reductions, copies both ways."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(4, 4, generator=generator) for _ in range(2))
    there = left.npu()
    there[1:, ::2] += 1.0
    product = there @ right.npu()

    left[1:, ::2] += 1.0
    assert str(product.device) == "npu:0"
    torch.testing.assert_close(product.cpu(), left @ right)
    assert torch.npu.memory_allocated() >= 4 * 4 * 4  # type: ignore[attr-defined]  # torch_npu adds it


def test_visible_devices_are_obeyed() -> None:
    """As CANN does: a process sees those that are named."""
    program = "import torch; print(torch.npu.device_count())"
    environ = {**os.environ, "ASCEND_RT_VISIBLE_DEVICES": "3,5"}

    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "2"


def test_a_scheduler_has_npus_to_give_out() -> None:
    """As many as the stand-ins show, though no driver has left a device file."""
    import torch

    from areal_devices.npu import npu

    assert len(npu().visible(os.environ)) == torch.npu.device_count() > 1  # type: ignore[attr-defined]


def test_whoever_asks_is_told_that_they_answer() -> None:
    """Reports and doctor ask in one place; without the stand-ins the same place says nothing."""
    from areal_ascend.environment import Installed
    from areal_ascend.testing import STAND_INS
    from areal_devices.cuda import cuda
    from areal_devices.npu import npu

    assert npu().stand_in == STAND_INS == Installed.here().stand_ins
    assert cuda().stand_in == ""

    program = "from areal_devices.npu import npu; print(repr(npu().stand_in))"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "''"
