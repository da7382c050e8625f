"""Every kind of device is seen, counted and confined by files and variables alone, on file systems made here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_core.contract.device import Device, DeviceMemory, SeenDevice
from areal_devices.cuda import cuda
from areal_devices.mps import mps
from areal_devices.npu import npu
from areal_devices.stand_ins import stand_in
from areal_devices.xpu import xpu


def put(root: Path, name: str, text: str = "") -> None:
    """Write one file below a root."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def kfd(root: Path, node: int, *, simds: int, render: int | None, version: int = 90402) -> None:
    """Write a node of AMD's compute driver; a GPU's render file unless the container was not given it."""
    put(root, "dev/kfd")
    text = f"cpu_cores_count 0\nsimd_count {simds}\ndrm_render_minor {render or 0}\ngfx_target_version {version}\n"
    put(root, f"sys/class/kfd/kfd/topology/nodes/{node}/properties", text)


def intel(root: Path, number: int, slot: str, *, vendor: str = "0x8086") -> None:
    """Write a render device and the PCI slot its link leads to."""
    put(root, f"dev/dri/renderD{number}")
    put(root, f"sys/devices/pci/{slot}/vendor", f"{vendor}\n")
    put(root, f"sys/devices/pci/{slot}/device", "0x0bd5\n")
    link = root / f"sys/class/drm/renderD{number}/device"
    link.parent.mkdir(parents=True)
    link.symlink_to(root / f"sys/devices/pci/{slot}")


@pytest.mark.parametrize("make", [cuda, npu, xpu, mps])
def test_a_plain_machine_shows_none(make: Callable[[Path], Device], tmp_path: Path) -> None:
    """Nothing seen is no error."""
    assert make(tmp_path).visible({}) == ()


def test_nvidia_cards_are_counted_and_named(tmp_path: Path) -> None:
    """The driver's own files give the number and the model."""
    for slot in ("0000:17:00.0", "0000:65:00.0"):
        put(tmp_path, f"proc/driver/nvidia/gpus/{slot}/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n")

    device = cuda(tmp_path)

    assert (device.name, device.vendor, device.collective) == ("cuda", "NVIDIA", "nccl")
    assert device.see({}) == [SeenDevice(id=number, name="NVIDIA H200") for number in "01"]


def test_a_container_without_the_drivers_folder_still_shows_its_cards(tmp_path: Path) -> None:
    """Device files count; the control files beside them do not."""
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        put(tmp_path, f"dev/{name}")

    assert cuda(tmp_path).visible({}) == ("0", "1")


def test_amd_gpus_are_cuda_to_torch_and_not_nvidias(tmp_path: Path) -> None:
    """Nodes without SIMDs are processors, and a GPU whose render file is not here is another container's."""
    kfd(tmp_path, 0, simds=0, render=None)
    for node, render in ((1, 128), (2, 129), (10, 130)):
        kfd(tmp_path, node, simds=304, render=render)
    for render in (128, 130):
        put(tmp_path, f"dev/dri/renderD{render}")

    device = cuda(tmp_path)

    assert (device.name, device.vendor, device.torch_type, device.collective) == ("cuda", "AMD", "cuda", "nccl")
    assert device.see({}) == [SeenDevice(id=number, name="AMD gfx942") for number in "01"]


def test_hip_counts_what_the_layer_below_leaves(tmp_path: Path) -> None:
    """ROCR_VISIBLE_DEVICES is read first, HIP numbers the rest anew, and CUDA_VISIBLE_DEVICES is HIP's other name."""
    for number in range(4):
        kfd(tmp_path, number, simds=304, render=128 + number)
        put(tmp_path, f"dev/dri/renderD{128 + number}")
    device = cuda(tmp_path)

    assert device.visible({}) == ("0", "1", "2", "3")
    assert device.visible({"ROCR_VISIBLE_DEVICES": "2,3"}) == ("0", "1")
    assert device.visible({"CUDA_VISIBLE_DEVICES": "2,3"}) == ("2", "3")
    assert device.visible({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2,3"}) == ("1",)
    assert device.confine(("1", "2")) == {"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1,2"}
    assert device.confine(()) == {"HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "-1"}, "HIP ignores empty ones"


def test_beside_nvidias_cards_a_processors_graphics_of_amd_do_not_count(tmp_path: Path) -> None:
    """A build of torch drives one vendor's GPUs."""
    kfd(tmp_path, 1, simds=8, render=128)
    put(tmp_path, "dev/dri/renderD128")
    put(tmp_path, "dev/nvidia0")

    assert cuda(tmp_path).vendor == "NVIDIA"


def test_npus_keep_their_numbers(tmp_path: Path) -> None:
    """/dev/davinci0 is a device and /dev/davinci_manager is not; ten follows nine."""
    for name in ("davinci10", "davinci9", "davinci_manager"):
        put(tmp_path, f"dev/{name}")

    assert npu(tmp_path).visible({}) == ("9", "10")
    assert npu(tmp_path).confine(("9",)) == {"ASCEND_RT_VISIBLE_DEVICES": "9"}


def test_intels_discrete_gpus_count_and_a_processors_own_do_not(tmp_path: Path) -> None:
    """Or `auto` would refuse every second laptop; who wants the graphics names them."""
    intel(tmp_path, 128, "0000:00:02.0")
    intel(tmp_path, 129, "0000:4d:00.0")
    intel(tmp_path, 130, "0000:9a:00.0")
    intel(tmp_path, 131, "0000:17:00.0", vendor="0x10de")
    device = xpu(tmp_path)

    assert device.visible({}) == ("0", "1")
    assert device.see({})[0] == SeenDevice(id="0", name="Intel 0x0bd5")
    assert device.visible({"ZE_AFFINITY_MASK": "1"}) == ("1",)
    assert device.confine(("1",)) == {"ZE_AFFINITY_MASK": "1"}
    assert device.confine(()) == {"ONEAPI_DEVICE_SELECTOR": "*:cpu"}, "an empty mask hides nothing"


@pytest.mark.parametrize(("machine", "count"), [("arm64", 1), ("x86_64", 0)])
def test_a_mac_has_one_gpu_that_nothing_confines(machine: str, count: int, tmp_path: Path) -> None:
    """Macs with a processor of Intel have the framework too."""
    (tmp_path / "System/Library/Frameworks/MetalPerformanceShaders.framework").mkdir(parents=True)
    device = mps(tmp_path, machine)

    assert len(device.visible({})) == count
    assert device.confine(("0",)) == device.confine(()) == {}


class Module:
    """What torch's modules of devices have."""

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 3 + index, 8

    def recommended_max_memory(self) -> int:
        return 8

    def driver_allocated_memory(self) -> int:
        return 5


@pytest.mark.parametrize("device", [cuda(), npu(), xpu(), mps()], ids=lambda device: str(device.name))
def test_memory_is_told_by_torchs_module(device: Device) -> None:
    """Free and in all, in bytes."""
    assert device.memory is not None
    assert device.memory(Module(), 0) == DeviceMemory(free=3, total=8)


def test_whoever_stands_in_for_a_device_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a process believe in a device carries the sentence; it is of that device alone."""
    made = tmp_path / "fake_npu-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-npu\nVersion: 0\n")
    (made / "entry_points.txt").write_text("[areal.stand_ins]\nnpu = a_fake_npu:SAID\n")
    (tmp_path / "a_fake_npu.py").write_text("SAID = 'Nothing is computed.'\n")

    before = stand_in("npu")
    monkeypatch.syspath_prepend(tmp_path)

    assert (before, npu().stand_in, cuda().stand_in) == ("", "Nothing is computed.", "")


def test_nothing_here_imports_torch() -> None:
    """Schedulers count devices where no engine is."""
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from areal_core.plugins.devices import accelerators, count_visible\n"
        "from areal_core.plugins.registry import Registry\n"
        "print(*sorted(count_visible(Registry(environ={}), {})))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout.split(), done.stderr) == (["cuda", "mps", "npu", "xpu"], "")
