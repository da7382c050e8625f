"""The role `device`: found, counted and refused through the registry, from packages and from a user's file."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from areal_core.contract.device import Device, SeenDevice
from areal_core.contract.errors import BackendBroken, BackendNotFound
from areal_core.plugins.devices import accelerators, count_visible, device_named, seen_kinds
from areal_core.plugins.registry import Registry
from areal_local.inventory import inventory

PAPER = Device(
    name="paper",
    vendor="nobody",
    torch_type="cpu",
    see=lambda environ: [SeenDevice(id=number, name="sheet") for number in environ.get("SHEETS", "ab")],
    visible_variables=("PAPER_VISIBLE",),
)
FILE = """
    from areal_core import Device, device

    @device("stone")
    def stone():
        "A device in one file."
        return Device(name="stone", vendor="me", torch_type="cpu", see=lambda environ: [])
"""


def registry(**devices: object) -> Registry:
    """Return a registry with devices of a test beside those that are installed."""
    return Registry(
        environ={},
        entries={("device", name): (lambda made=made: made) for name, made in devices.items()},
    )


def test_the_cpu_is_there_and_is_no_accelerator() -> None:
    """It comes with the core, and any number of workers share it."""
    alone = registry()

    assert device_named(alone, "cpu").torch_type == "cpu"
    assert "cpu" in seen_kinds(alone)
    assert "cpu" not in {*count_visible(alone, {}), *(device.name for device in accelerators(alone))}


def test_devices_are_counted_by_files_and_bounded_by_variables() -> None:
    """What a plan may use is what the process may see; what the machine has is more."""
    known = registry(paper=PAPER)

    assert count_visible(known, {"SHEETS": "abc"})["paper"] == 3
    assert count_visible(known, {"SHEETS": "abc", "PAPER_VISIBLE": "b"})["paper"] == 1
    assert seen_kinds(known) >= {"cpu", "paper"}


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    """Of the core, of packages, and of files."""
    known = registry(paper=PAPER)

    with pytest.raises(BackendNotFound, match=r"no device named 'tpu'(.|\n)*cpu \(areal-core .*paper \(overlay\)"):
        device_named(known, "tpu")


def test_a_broken_device_hides_no_other() -> None:
    """It is told when it is named, and by doctor."""
    known = registry(broken="no device at all", paper=PAPER)

    assert PAPER in accelerators(known)
    assert "broken" not in count_visible(known, {})
    with pytest.raises(BackendBroken, match="'broken' is of type str"):
        device_named(known, "broken")


def test_a_users_file_brings_a_device(tmp_path: Path) -> None:
    """By a decorator; its manifest runs on itself."""
    path = tmp_path / "stone.py"
    path.write_text(dedent(FILE))
    known = registry()

    (added,) = known.add_file(path)

    assert (added.role, added.name) == ("device", "stone")
    assert device_named(known, "stone").vendor == "me"
    assert known.describe("device", "stone").devices == ("stone",)
    assert known.describe("device", "stone").summary == "A device in one file."


def test_a_kind_the_machine_lacks_is_no_fault() -> None:
    """A machine has one kind of accelerator or none, and doctor would warn of all others."""
    rows = inventory(Registry(environ={}), role="device")

    assert [row.name for row in rows if not row.optional] == []
    assert {row.name for row in rows} >= {"cpu", "cuda", "mps", "npu", "xpu"}
