"""What one machine promises to jobs: memory is not promised twice, devices are shared only where a job asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job, Together
from areal_local.scheduler.capacity import Capacity, machine_memory
from areal_local.scheduler.devices import DevicePool

JOB = Job(role="actor", engine_role="train", backend="fsdp", num_workers=2, device="cuda")
GUEST = attrs.evolve(JOB, role="rollout", num_workers=1, together_with=Together(role="actor", share="devices"))  # type: ignore[arg-type]


def capacity(memory: int = 100) -> Capacity:
    """Return a machine of four devices and 100 bytes."""
    return Capacity(DevicePool({"cuda": ("0", "1", "2", "3")}), memory)


def named(job: Job, role: str, **fields: Any) -> Job:
    """Return the job under another name. Any: its fields."""
    return attrs.evolve(job, role=role, **fields)


def test_memory_is_promised_once() -> None:
    """Of 100 bytes, two workers of 40 leave 20; they are free again when the job is gone."""
    machine = capacity()
    machine.take(named(JOB, "a", memory=40))

    with pytest.raises(ResourceError, match=r"wants .* 20|2 workers with"):
        machine.take(named(JOB, "b", memory=11))
    machine.take(named(JOB, "c", memory=10))
    machine.give_back("a")
    machine.take(named(JOB, "b", memory=40))


def test_a_refused_job_leaves_devices_as_they_were() -> None:
    """Memory is looked at first, and a role that was refused is free."""
    machine = capacity()

    with pytest.raises(ResourceError, match="host memory"):
        machine.take(named(JOB, "a", memory=51))
    assert machine.take(named(JOB, "a", num_workers=4)).devices == [("0",), ("1",), ("2",), ("3",)]


def test_guests_take_devices_in_rank_order_and_none_twice() -> None:
    """Replica by replica, each the next device of the role; a third one finds none."""
    machine = capacity()
    machine.take(JOB)

    assert [machine.take(named(GUEST, f"rollout.{n}")).devices for n in range(2)] == [[("0",)], [("1",)]]
    with pytest.raises(ResourceError, match="wants 1 devices of 'actor', 0 are free"):
        machine.take(named(GUEST, "rollout.2"))
    machine.give_back("rollout.0")
    assert machine.take(named(GUEST, "rollout.3")).devices == [("0",)]


@pytest.mark.parametrize("first", ["actor", "rollout"])
def test_a_shared_device_is_free_when_the_last_one_lets_go(first: str) -> None:
    """Whoever ends first; the device is given out once after that."""
    machine = capacity()
    machine.take(JOB)
    machine.take(attrs.evolve(GUEST, devices_per_worker=2))
    machine.give_back(first)

    with pytest.raises(ResourceError):
        machine.take(named(JOB, "other", num_workers=3))
    machine.give_back("rollout" if first == "actor" else "actor")
    taken = machine.take(named(JOB, "other", num_workers=4)).devices
    assert sorted(taken) == [("0",), ("1",), ("2",), ("3",)]


def test_a_place_beside_nobody_is_refused() -> None:
    """The other role has to be there, on the same kind of device."""
    machine = capacity()

    with pytest.raises(ConfigError, match="'actor', which is not running"):
        machine.take(GUEST)
    machine.take(attrs.evolve(JOB, device="cpu"))
    with pytest.raises(ResourceError, match="it runs on cuda, the other on cpu"):
        machine.take(GUEST)
    assert machine.take(attrs.evolve(GUEST, device="cpu")).devices == [()]


@pytest.mark.parametrize(("text", "limited"), [("4096", True), ("max", False), (None, False)])
def test_a_container_has_the_memory_of_its_limit(tmp_path: Path, text: str | None, limited: bool) -> None:
    """Else that of the machine."""
    if text is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(text)

    assert (machine_memory(tmp_path) == 4096) is limited
