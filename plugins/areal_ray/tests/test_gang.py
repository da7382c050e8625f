"""What Ray keeps for a job is kept for as long as somebody uses its devices, and no longer."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from ray.util.placement_group import PlacementGroup

from areal_core.contract.scheduler import Job
from areal_ray.gang import Gang, no_more_needed


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


def _group(name: str) -> PlacementGroup:
    return cast(PlacementGroup, name)
