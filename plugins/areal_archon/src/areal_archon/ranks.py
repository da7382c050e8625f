"""Who this rank works with along each axis: the groups of t, c, p and e, and the meshes parameters are sharded over.

Knows: how ranks of a layout are grouped, with the timeout of the run.
Does not know: models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from math import prod

import torch.distributed as dist
from attrs import frozen
from torch.distributed.device_mesh import DeviceMesh

from areal_core.contract.errors import LayoutError
from areal_core.contract.train import RankContext
from areal_torch.context import ContextRanks
from areal_torch.device import torch_type
from areal_torch.layout import ORDER, coordinates, divisors
from areal_torch.newcomers import no_newcomers


@frozen(kw_only=True, eq=False)
class Ranks:
    """One rank's place. A group is None where the axis has one rank.

    `shards` are the ranks that differ in d and c: they share every parameter. Experts are shared by `expert_shards`,
    those of them that hold the same experts, for `expert` ranks next to each other hold different ones.
    """

    place: Mapping[str, int]
    degrees: Mapping[str, int]
    shards: DeviceMesh
    expert_shards: DeviceMesh
    tensor: dist.ProcessGroup | None
    context: ContextRanks | None
    expert: dist.ProcessGroup | None
    pipeline: dist.ProcessGroup | None


@no_newcomers()
def arrange(layout: Mapping[str, int], rank: RankContext) -> Ranks:
    """Make the groups of a layout that was checked. Collective."""
    degrees = {letter: layout.get(letter, 1) for letter in (*ORDER, "e")}
    places = [_place(degrees, number) for number in range(rank.world_size)]
    mine = places[rank.rank]
    timeout = timedelta(seconds=rank.timeout_s)

    def group(alike: Callable[[Mapping[str, int]], tuple[int, ...]]) -> dist.ProcessGroup:
        """Group the ranks for which `alike` gives the same; every rank makes every group, in the same order."""
        members: dict[tuple[int, ...], list[int]] = {}
        for number, place in enumerate(places):
            members.setdefault(alike(place), []).append(number)
        made = {key: dist.new_group(numbers, timeout=timeout) for key, numbers in members.items()}
        found: dist.ProcessGroup = made[alike(mine)]
        return found

    def along(*axes: str) -> dist.ProcessGroup:
        """Group the ranks that differ in these axes only; e and the rest x are axes of their own, within d and c."""
        others = [axis for axis in ("p", "t", "d", "c", "e", "x") if axis not in axes]
        return group(lambda place: tuple(place[axis] for axis in others))

    def axis(letter: str, *axes: str) -> dist.ProcessGroup | None:
        return along(*axes) if degrees[letter] > 1 else None

    shards = _mesh(along("d", "c", "e", "x"), rank)
    expert_shards = (
        _mesh(group(lambda place: (place["p"], place["t"], place["e"])), rank) if degrees["e"] > 1 else shards
    )
    context = axis("c", "c", "e", "x")
    return Ranks(
        place=mine,
        degrees=degrees,
        shards=shards,
        expert_shards=expert_shards,
        tensor=axis("t", "t"),
        context=None if context is None else ContextRanks(context),
        expert=group(lambda place: (place["p"], place["t"], place["x"])) if degrees["e"] > 1 else None,
        pipeline=axis("p", "p"),
    )


def check_expert_degree(layout: Mapping[str, int]) -> None:
    """Refuse an expert degree that the data and context ranks cannot hold.

    Raises:
        LayoutError: it does not divide their number.
    """
    degree, holders = layout.get("e", 1), prod(layout.get(letter, 1) for letter in "dc")
    if holders % degree:
        raise LayoutError(
            f"e{degree} does not divide {holders} data and context ranks",
            why="expert ranks are taken from those of d and c",
            fix=f"choose e from {divisors(holders)}",
        )


def _place(degrees: Mapping[str, int], number: int) -> dict[str, int]:
    place = coordinates(degrees, number)
    rest, expert = divmod(place["d"] * degrees["c"] + place["c"], degrees["e"])
    return {**place, "e": expert, "x": rest}


def _mesh(group: dist.ProcessGroup, rank: RankContext) -> DeviceMesh:
    mesh: DeviceMesh = DeviceMesh.from_group(group, torch_type(rank.device))
    return mesh
