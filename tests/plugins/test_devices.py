"""Devices are seen in the file system, without torch."""

from __future__ import annotations

from pathlib import Path

from areal_core.plugins.devices import Device, seen_devices, seen_kinds


def touch(root: Path, *names: str) -> None:
    """Create empty files below a root."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_plain_machine_has_a_cpu(tmp_path: Path) -> None:
    """Nothing seen is no error."""
    assert seen_devices(tmp_path) == ()
    assert {"cpu"} == seen_kinds(tmp_path)


def test_nvidia_cards_are_counted_and_named(tmp_path: Path) -> None:
    """The driver's own files give the number and the model."""
    for slot in ("0000:17:00.0", "0000:65:00.0"):
        touch(tmp_path, f"proc/driver/nvidia/gpus/{slot}/information")
        (tmp_path / f"proc/driver/nvidia/gpus/{slot}/information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")

    expected = tuple(Device(kind="cuda", index=index, name="NVIDIA H200") for index in (0, 1))
    assert expected == seen_devices(tmp_path)


def test_a_container_without_the_drivers_folder_still_shows_its_cards(tmp_path: Path) -> None:
    """Device files count; the control files beside them do not."""
    touch(tmp_path, "dev/nvidia0", "dev/nvidia3", "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-modeset")

    assert [(device.kind, device.index) for device in seen_devices(tmp_path)] == [("cuda", 0), ("cuda", 1)]


def test_ascend_devices_keep_their_numbers(tmp_path: Path) -> None:
    """/dev/davinci0 is a device and /dev/davinci_manager is not; ten follows nine."""
    touch(tmp_path, "dev/davinci10", "dev/davinci9", "dev/davinci_manager")

    assert [(device.kind, device.index) for device in seen_devices(tmp_path)] == [("npu", 9), ("npu", 10)]
    assert {"cpu", "npu"} == seen_kinds(tmp_path)
