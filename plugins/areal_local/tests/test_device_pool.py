"""No device is given out twice, whatever is asked for and given back, and a worker sees its own only."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.device import Device, SeenDevice
from areal_core.contract.errors import ResourceError
from areal_local.scheduler.devices import DevicePool, Devices


def kind(name: str, *ids: str, hidden: Mapping[str, str] | None = None) -> Device:
    """Return a kind of device with its own variable, of which some are here."""
    return Device(
        name=name,
        vendor="nobody",
        torch_type=name,
        see=lambda environ: [SeenDevice(id=number, name=name) for number in ids],
        visible_variables=(f"{name.upper()}_VISIBLE",),
        hidden=hidden,
    )


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=12))
def test_devices_in_use_and_free_are_always_all_devices_once(jobs: list[tuple[int, int, bool]]) -> None:
    """Whatever jobs come and go, no id is owned twice and none is lost."""
    everything = ("0", "1", "GPU-abc", "3", "4")
    pool, held = DevicePool({"cuda": everything}), []

    for num_workers, per_worker, gives_back in jobs:
        try:
            held.append(pool.take("cuda", num_workers, per_worker))
        except ResourceError:
            assert num_workers * per_worker > len(everything) - sum(len(ids) for job in held for ids in job)
        else:
            assert [len(ids) for ids in held[-1]] == [per_worker] * num_workers
        if gives_back and held:
            pool.give_back("cuda", held.pop(0))

    owned = [device for job in held for ids in job for device in ids]
    rest = pool.take("cuda", len(everything) - len(owned), 1) if len(owned) < len(everything) else []
    assert sorted(everything) == sorted([*owned, *(device for ids in rest for device in ids)])


def test_the_cpu_is_never_exhausted() -> None:
    """CPU workers own no device."""
    assert DevicePool({}).take("cpu", 2, 1) == [(), ()]


def test_an_unknown_kind_is_refused_by_name() -> None:
    """The message names the kinds there are."""
    with pytest.raises(ResourceError, match=r"unknown device 'tpu'(.|\n)*devices are cpu, cuda"):
        DevicePool({"cuda": ("0",)}).take("tpu", 1, 1)


def test_too_few_are_refused_with_the_variable_that_bounds_them() -> None:
    """Of the kind itself, as its plugin names it."""
    pool = DevicePool.of_machine([kind("paper", "0")], {})

    with pytest.raises(ResourceError, match=r"2 paper devices are wanted and 1 are free(.|\n)*extend PAPER_VISIBLE"):
        pool.take("paper", 2, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2,3", ("2", "3")), ("GPU-a, GPU-b", ("GPU-a", "GPU-b")), ("", ()), ("-1", ()), ("1,-1,2", ("1",))],
)
def test_the_environment_bounds_what_is_visible(value: str, expected: Devices) -> None:
    """What the controller may not see, its workers do not get; without a variable, what is seen counts."""
    device = kind("paper", "0", "1")

    assert expected == device.visible({"PAPER_VISIBLE": value})
    assert device.visible({}) == ("0", "1")


@pytest.mark.parametrize(
    ("name", "ids", "expected"),
    [
        ("paper", ("2", "3"), {"PAPER_VISIBLE": "2,3", "STONE_HIDDEN": "yes"}),
        ("stone", ("0",), {"PAPER_VISIBLE": "", "STONE_VISIBLE": "0"}),
        ("cpu", (), {"PAPER_VISIBLE": "", "STONE_HIDDEN": "yes"}),
    ],
)
def test_a_worker_sees_its_own_devices_and_no_other_kind(name: str, ids: Devices, expected: dict[str, str]) -> None:
    """Each kind is confined and hidden by what its plugin says."""
    pool = DevicePool({}, [kind("paper", "0"), kind("stone", "0", hidden={"STONE_HIDDEN": "yes"})])

    assert pool.confinement(name, ids) == expected
