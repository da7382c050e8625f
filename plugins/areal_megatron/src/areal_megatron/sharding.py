"""Which box of every parameter this rank holds, and its float32 master.

Knows: cuts over tensor, pipeline and expert ranks, masters shared out over data ranks, a vocabulary filled up.
Does not know: batches, optimizers, files.

A master is what is trained, saved and sent. Layers compute with the weight, which in float32 is the same memory unless
masters are shared out. Rows that only fill the vocabulary up are in the weight and never in the master.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

from areal_megatron.names import EMBEDDING, HEAD
from areal_megatron.ranks import Ranks
from areal_torch.layout import share_of
from areal_torch.parameters import Parameter
from areal_torch.pieces import Box, joined


@frozen(kw_only=True, eq=False)
class Held:
    """A parameter of which this rank holds a box. `copied` is a tied head, whose parameter another stage has.

    The weight, seen as `part`, is what tensor and expert ranks left to this one. The master is all of it, or a share
    along `dim` where the ranks of `sharers`, which have the same weight, each keep one. `cut_from` is where the part
    begins along the dimension that tensor ranks cut.
    """

    weight: nn.Parameter
    master: Tensor
    parameter: Parameter
    box: Box
    part: tuple[int, ...]
    cut_from: int = 0
    dim: int = 0
    sharers: dist.ProcessGroup | None = None
    copied: bool = False

    def whole_part(self, like_weight: Tensor) -> Tensor:
        """Return what belongs to the weight, in its shape, as the part is shaped; the same memory."""
        return like_weight.view(-1)[: prod(self.part)].view(self.part)

    def own(self, part: Tensor) -> Tensor:
        """Return what belongs to the master of a tensor shaped as the part; the same memory."""
        if self.sharers is None:
            return part
        share = share_of(self.part[self.dim], self.sharers.size(), self.sharers.rank())
        return part.narrow(self.dim, share.start, len(share))

    def joined(self, dtype: torch.dtype) -> Tensor:
        """Return the part as the masters of all sharers have it. Collective over them."""
        master = self.master.to(dtype)
        return master if self.sharers is None else joined(master, self.dim, self.part[self.dim], self.sharers)

    @torch.no_grad()
    def refresh(self) -> None:
        """Let layers compute with the masters' values. Collective over sharers."""
        if self.sharers is not None or self.master.dtype != self.weight.dtype:
            self.whole_part(self.weight).copy_(self.joined(self.weight.dtype))


def held(
    stages: Iterable[Iterable[tuple[str, nn.Parameter]]],
    parameters: Sequence[Parameter],
    ranks: Ranks,
    *,
    share_masters: bool,
) -> dict[str, Held]:
    """Return what this rank holds, by the names of the whole model, from the named parameters of its stages.

    A head that is a copy of the embedding, which another stage has, goes by the name of the embedding and is never
    the one that answers for it.
    """
    known = {parameter.name: parameter for parameter in parameters}
    found = {}
    for stage in stages:
        for name, weight in stage:
            copied = name == HEAD and name not in known
            parameter = known[EMBEDDING if copied else name]
            found[parameter.name] = _held(weight, parameter, ranks, share_masters=share_masters, copied=copied)
    return found


def boxes(held: Mapping[str, Held]) -> Mapping[int, Box]:
    """Return the boxes by the identity of the master."""
    return {id(each.master): each.box for each in held.values()}


@torch.no_grad()
def _held(weight: nn.Parameter, parameter: Parameter, ranks: Ranks, *, share_masters: bool, copied: bool) -> Held:
    cut_dim, part = parameter.cut, list(parameter.shape)
    offset, cut_from = [0] * len(part), 0
    of_expert = parameter.expert is not None
    alike = ranks.expert_data if of_expert else ranks.data
    first = cut_dim is not None or ranks.place["t"] == 0
    if cut_dim is not None:
        sharing = ranks.cutting(of_expert=of_expert)
        cut = share_of(part[cut_dim], sharing.size(), sharing.rank())
        offset[cut_dim], part[cut_dim], cut_from = cut.start, len(cut), cut.start
    dim = part.index(max(part))
    whole = weight.detach().view(-1)[: prod(part)].view(part)
    filling = weight.detach().view(-1)[prod(part) :]
    assert not len(filling) or parameter.name in (EMBEDDING, HEAD), f"{parameter.name} is {tuple(weight.shape)} here"
    filling.zero_()
    if share_masters:
        share = share_of(part[dim], alike.size(), alike.rank())
        offset[dim] += share.start
        master = whole.narrow(dim, share.start, len(share)).to(torch.float32, copy=True).contiguous()
    else:
        first = first and alike.rank() == 0
        master = whole if weight.dtype is torch.float32 else whole.float()
    return Held(
        weight=weight,
        master=master,
        parameter=parameter,
        box=Box(offset=tuple(offset), shape=parameter.shape, mine=first and not copied),
        part=tuple(part),
        cut_from=cut_from,
        dim=dim,
        sharers=alike if share_masters else None,
        copied=copied,
    )
