"""Which box of a whole tensor a rank holds, and whether it answers for it.

Knows: unsharded tensors and DTensors on meshes of any dimensions.
Does not know: what the tensors are for.
"""

from __future__ import annotations

from attrs import frozen
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


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
    """Return the box of this rank's part. A tensor that is no DTensor is whole here and nowhere else."""
    if not isinstance(tensor, DTensor):
        return Box(offset=(0,) * tensor.ndim, shape=tuple(tensor.shape))
    mesh, placements = tensor.device_mesh, tensor.placements
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "a rank holds no parameter of a mesh it is not in"
    first = all(not place.is_replicate() or at == 0 for place, at in zip(placements, coordinate, strict=True))
    whole = tuple(tensor.shape)
    return Box(offset=tuple(min(at, size) for at, size in zip(offset, whole, strict=True)), shape=whole, mine=first)
