"""Which box of a whole tensor a rank holds, whether it answers for it, and how parts are put together again.

Knows: unsharded tensors and DTensors on meshes of any dimensions.
Does not know: what the tensors are for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from areal_torch.layout import largest_share, share_of


@frozen(kw_only=True)
class Box:
    """Where a part lies: it begins at `offset` in a tensor of `shape`.

    Of the ranks that hold the same part exactly one answers for it: `mine` is True there. It alone counts the
    part in a norm and writes it to a state.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    mine: bool = True


def box_of(tensor: Tensor) -> Box:
    """Return the box of this rank's part. A tensor that is no DTensor is whole here and nowhere else.

    torch tells it too, but wrongly where tensor ranks hold unlike many rows and data ranks share these.
    """
    if not isinstance(tensor, DTensor):
        return Box(offset=(0,) * tensor.ndim, shape=tuple(tensor.shape))
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "a rank holds no parameter of a mesh it is not in"
    held = runs_of(tensor.shape, placements, mesh.shape, coordinate)
    first = all(not place.is_replicate() or at == 0 for place, at in zip(placements, coordinate, strict=True))
    return Box(offset=tuple(run.start for run in held), shape=tuple(tensor.shape), mine=first)


def runs_of(
    shape: Sequence[int], placements: Sequence[Placement], degrees: Sequence[int], coordinate: Sequence[int]
) -> list[range]:
    """Return what a rank holds of each dimension, by its place on a mesh of these degrees."""
    held = [range(size) for size in shape]
    cuts = zip(placements, degrees, coordinate, strict=True)
    for place, degree, at in sorted(cuts, key=lambda cut: isinstance(cut[0], _StridedShard)):  # FSDP cuts what is left
        if isinstance(place, (Shard, _StridedShard)):
            own = held[place.dim]
            share = share_of(len(own), degree, at)
            held[place.dim] = own[share.start : share.stop]
    return held


def joined(part: Tensor, dim: int, total: int, group: dist.ProcessGroup | None) -> Tensor:
    """Put together, on every rank, what the ranks of a group hold of `total` rows along `dim`. Collective.

    Runs are those of `share_of`: the last may have fewer rows, or none. None stands for one rank.
    """
    if group is None or group.size() == 1:
        return part
    missing = largest_share(total, group.size()) - part.shape[dim]
    if missing:
        lengths = list(part.shape)
        lengths[dim] = missing
        part = torch.cat([part, part.new_zeros(lengths)], dim)
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim).narrow(dim, 0, total)
