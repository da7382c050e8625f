"""What Ray keeps for a job is kept for as long as somebody uses its devices, and no longer."""

from __future__ import annotations

from typing import cast

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from ray.util.placement_group import PlacementGroup

from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job, Share, Together
from areal_ray.gang import Gang, no_more_needed, shared_devices
from areal_ray.ray_worker import RayWorker


@given(st.integers(0, 3).flatmap(lambda guests: st.permutations(range(guests + 1))))
def test_an_owners_devices_are_given_back_with_its_last_guest(ending: list[int]) -> None:
    """In whatever order they end: each group once, the owner's when none of them is left, a guest's with it."""
    job = Job(role="any", engine_role="train", backend="any", num_workers=1)
    owner = Gang(job, group=_group("owner"))
    gangs = [owner, *(Gang(job, group=_group(f"guest {number}"), lender=owner) for number in range(1, len(ending)))]
    living, released = list(gangs), list[list[str]]()

    for number in ending:
        living.remove(gangs[number])
        released.append([str(group) for group in no_more_needed(gangs[number], living)])

    for number, groups in zip(ending, released, strict=True):
        last = number == ending[-1]
        assert ("owner" in groups) == last
        assert len(groups) == (number != 0) + last
    assert sorted(name for groups in released for name in groups) == sorted(str(gang.group) for gang in gangs)


def test_guests_that_come_at_once_get_devices_of_their_own() -> None:
    """Replicas are placed side by side: the second is dealt with before the first has any worker."""
    owner = Gang(Job(role="actor", engine_role="train", backend="any", num_workers=2, device="cuda"))
    owner.workers = cast(list[RayWorker], [Owner("one", ("3", "5")), Owner("two", ("0",))])
    gangs, lots = {"actor": owner}, list[str]()
    for number in range(3):
        guest = Job(role=f"rollout.{number}", engine_role="infer", backend="any", num_workers=1, device="cuda",
                    together_with=Together(role="actor", share=Share.DEVICES))  # fmt: skip
        gangs[guest.role] = Gang(guest)
        gangs[guest.role].shared = shared_devices(guest, gangs)
        lots += [f"{node} {','.join(devices)}" for node, devices in gangs[guest.role].shared]

    assert lots == ["one 3", "one 5", "two 0"]
    with pytest.raises(ResourceError, match="wants 1 devices of 'actor', 0 are free"):
        shared_devices(attrs.evolve(guest, role="more"), gangs)


@frozen
class Owner:
    """A worker, as far as others share its devices."""

    node: str
    devices: tuple[str, ...]


def _group(name: str) -> PlacementGroup:
    return cast(PlacementGroup, name)
