"""No device is given out twice, whatever is asked for and given back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import ResourceError
from areal_core.worker.devices import DevicePool, Devices, confinement, visible


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
    """CPU workers own no device and hide CUDA's."""
    assert DevicePool({}).take("cpu", 2, 1) == [(), ()]
    assert confinement("cpu", ()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_an_unknown_kind_is_refused_by_name() -> None:
    """The message names the kinds there are."""
    with pytest.raises(ResourceError, match="unknown device 'tpu'"):
        DevicePool({"cuda": ("0",)}).take("tpu", 1, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2,3", ("2", "3")), ("GPU-a, GPU-b", ("GPU-a", "GPU-b")), ("", ()), ("-1", ()), ("1,-1,2", ("1",))],
)
def test_the_environment_bounds_what_is_visible(value: str, expected: Devices, tmp_path: Path) -> None:
    """What the controller may not see, its workers do not get."""
    assert expected == visible("cuda", {"CUDA_VISIBLE_DEVICES": value}, tmp_path)


def test_the_driver_tells_otherwise(tmp_path: Path) -> None:
    """Without a variable the device files count."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "davinci3", "davinci_manager"):
        (tmp_path / "dev" / name).touch()

    assert (visible("cuda", {}, tmp_path), visible("npu", {}, tmp_path)) == (("0", "1"), ("3",))


@pytest.mark.parametrize(("kind", "name"), [("cuda", "CUDA_VISIBLE_DEVICES"), ("npu", "ASCEND_RT_VISIBLE_DEVICES")])
def test_a_worker_sees_its_own_devices_only(kind: str, name: str) -> None:
    """The variable of the kind names the ids."""
    assert confinement(kind, ("2", "3")) == {name: "2,3"}
