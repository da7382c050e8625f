"""How a stage is cut over the ranks that share it, and which box of every parameter this rank holds.

Knows: FSDP2 units over d and c, the cuts of t and e that modules were built with, boxes.
Does not know: batches, optimizers, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from areal_archon.models.decoder import Block, Decoder
from areal_archon.models.mixture import Mixture
from areal_archon.ranks import Ranks
from areal_torch.layout import share_of
from areal_torch.parameters import Parameter
from areal_torch.pieces import Box, box_of

SMALL_BYTES = 64 << 20


@frozen(kw_only=True, eq=False)
class Held:
    """A parameter of which this rank holds a box."""

    tensor: nn.Parameter
    parameter: Parameter
    box: Box


def shard(
    stage: Decoder, ranks: Ranks, dtype: torch.dtype, *, layers_apart: bool, reshard_after_forward: bool
) -> FSDPModule:
    """Cut every parameter of a stage in place: one unit for each layer, if `layers_apart`, and one for the rest.

    Experts shared by expert ranks are a unit too, over the ranks that hold the same ones. Parameters stay float32,
    layers compute in `dtype`, gradients are added in float32: added and not averaged, over however many ranks.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )

    def unit(module: nn.Module, mesh: DeviceMesh, *, reshard: bool) -> FSDPModule:
        made = fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard)
        assert isinstance(made, FSDPModule)
        made.set_gradient_divide_factor(1.0)
        made.set_force_sum_reduction_for_comms(True)
        return made

    for block in stage.blocks.values():
        assert isinstance(block, Block)
        if isinstance(block.feed_forward, Mixture) and ranks.expert is not None:
            unit(block.feed_forward.experts, ranks.expert_shards, reshard=reshard_after_forward)
        if layers_apart:
            unit(block, ranks.shards, reshard=reshard_after_forward)
    return unit(stage, ranks.shards, reshard=False)


def held(stages: Iterable[Decoder], parameters: Sequence[Parameter], ranks: Ranks) -> dict[str, Held]:
    """Return what this rank holds, by the names of the whole model.

    A head that is a copy of the embedding, which another stage has, goes by the name of the embedding and is
    never the one that answers for it.
    """
    known = {parameter.name: parameter for parameter in parameters}
    found = {}
    for stage in stages:
        for name, tensor in stage.named_parameters():
            copied = name not in known
            parameter = known["embedding.weight" if copied else name]
            box = _box(tensor, parameter, ranks, copied=copied)
            found[parameter.name] = Held(tensor=tensor, parameter=parameter, box=box)
    return found


def boxes(held: Mapping[str, Held]) -> Mapping[int, Box]:
    """Return the boxes by the identity of the tensor."""
    return {id(each.tensor): each.box for each in held.values()}


def _box(tensor: Tensor, parameter: Parameter, ranks: Ranks, *, copied: bool) -> Box:
    """Add the cuts of t and e, which FSDP does not know, to its own."""
    part = box_of(tensor)
    offset, cut = list(part.offset), parameter.cut
    if cut is not None:
        offset[cut] += share_of(parameter.shape[cut], ranks.degrees["t"], ranks.place["t"]).start
    if parameter.stacked:
        offset[0] += ranks.place["e"] * part.shape[0]
    first = cut is not None or ranks.place["t"] == 0
    return Box(offset=tuple(offset), shape=parameter.shape, mine=part.mine and first and not copied)
