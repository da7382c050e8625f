"""How a transformers model is cut over ranks by FSDP2, and filled from rank 0.

Knows: meshes, wrapping units, DTensors.
Does not know: batches, optimizers, files; how tensor ranks share a layer (`areal_fsdp.tensor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from areal_core.contract.errors import CapabilityError, LayoutError
from areal_core.contract.train import RankContext
from areal_fsdp import tensor
from areal_fsdp.config import FSDPConfig
from areal_torch.attention import leave_uncompiled
from areal_torch.context import ContextRanks, check_context
from areal_torch.hf import Model
from areal_torch.layout import share_of
from areal_torch.model import PackedModel
from areal_torch.newcomers import no_newcomers
from areal_torch.optimizer import local
from areal_torch.pieces import box_of, joined

SMALL_BYTES = 64 << 20


@frozen(kw_only=True, eq=False)
class Meshes:
    """Which ranks do what together. Data and context ranks hold shards alike: each saw other tokens.

    `shards` has a dimension of replicas before that of shards, if there are several.
    """

    shards: DeviceMesh
    tensor: DeviceMesh | None = None
    context: ContextRanks | None = None

    @classmethod
    def of(cls, layout: Mapping[str, int], rank: RankContext, replicas: int, device: torch.device) -> Meshes:
        """Build the meshes of a checked layout. Collective."""
        data, context, tensors = (layout.get(letter, 1) for letter in "dct")
        sizes = {"replicas": replicas, "shards": data * context // replicas, "tensor": tensors}
        sizes = {name: size for name, size in sizes.items() if size > 1 or name == "shards"}
        every = _mesh(sizes, rank, device)
        sequences = None
        if context > 1:
            split = _mesh({"data": data, "context": context, "tensor": tensors}, rank, device)
            sequences = ContextRanks(split["context"].get_group())
        return cls(
            shards=every[("replicas", "shards") if replicas > 1 else ("shards",)],
            tensor=every["tensor"] if tensors > 1 else None,
            context=sequences,
        )


@no_newcomers()
def _mesh(sizes: Mapping[str, int], rank: RankContext, device: torch.device) -> DeviceMesh:
    """Return a mesh of all ranks. Collective.

    Its groups give up after the timeout of the run; those of `init_device_mesh` would wait for half an hour.
    """
    ranks = torch.arange(rank.world_size).view(tuple(sizes.values()))
    timeout = timedelta(seconds=rank.timeout_s)

    def along(axis: int) -> dist.ProcessGroup:
        lines = ranks.movedim(axis, -1).reshape(-1, ranks.shape[axis]).tolist()
        if len(lines) == 1 and dist.group.WORLD is not None:
            return dist.group.WORLD
        mine: dist.ProcessGroup
        mine, _ = dist.new_subgroups_by_enumeration(lines, timeout=timeout)  # type: ignore[no-untyped-call]
        return mine

    groups = [along(axis) for axis in range(ranks.ndim)]
    mesh: DeviceMesh = DeviceMesh.from_group(
        groups if len(groups) > 1 else groups[0], device.type, ranks, mesh_dim_names=tuple(sizes)
    )
    return mesh


def check(model: Model, layout: Mapping[str, int]) -> None:
    """Refuse a layout that does not fit an empty model.

    Raises:
        LayoutError, ModelError: heads do not divide, or it cannot be sharded over tensor ranks at all.
    """
    tensors, context = layout.get("t", 1), layout.get("c", 1)
    if tensors > 1:
        tensor.check(model, tensors)
    if context > 1:
        text = model.config.get_text_config()
        heads = int(text.num_attention_heads)
        kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
        check_context(context, heads // tensors, kv_heads // tensors)


def check_options(config: FSDPConfig, layout: Mapping[str, int]) -> None:
    """Refuse options that do not fit a layout.

    Raises:
        LayoutError: replicas would be of unequal size.
        CapabilityError: layers cannot be compiled.
    """
    data = layout.get("d", 1)
    if data % config.replicas:
        raise LayoutError(
            f"{config.replicas} replicas do not divide d{data}",
            why="every replica of the model is sharded over equally many data ranks",
            fix="set options.replicas to a divisor of d, or leave it out",
        )
    if config.compile and layout.get("t", 1) > 1:
        raise CapabilityError(
            "layers are not compiled over tensor ranks",
            why="torch 2.13 cannot compile DTensors whose length differs from batch to batch",
            fix="leave out options.compile, or t",
        )


def shard(model: PackedModel, mesh: DeviceMesh, dtype: torch.dtype, config: FSDPConfig) -> FSDPModule:
    """Cut every parameter over `mesh` in place: one unit per decoder layer and one for the rest.

    Parameters stay float32; layers compute in `dtype`; gradients are reduced in float32.
    """
    layers = _layers(model.hf)
    if config.compile:
        leave_uncompiled()
        for layer in layers:
            layer.compile(backend=config.compile_backend, dynamic=True)
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    offload: OffloadPolicy = OffloadPolicy()
    if config.cpu_offload and mesh.device_type != "cpu":
        offload = CPUOffloadPolicy()
    for layer in layers if _is_wrapped(model.hf, config.wrap) else ():
        fully_shard(
            layer,
            mesh=mesh,
            mp_policy=precision,
            offload_policy=offload,
            reshard_after_forward=config.reshard_after_forward,
        )
    root = fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload, reshard_after_forward=False)
    assert isinstance(root, FSDPModule)
    return root


@torch.no_grad()
def fill(packed: PackedModel, source: Model | None, device: torch.device, *, offloaded: bool) -> None:
    """Give memory to a sharded meta model and copy rank 0's `source` into it, one tensor at a time. Collective.

    Buffers that no folder stores (rotary frequencies) are copied as well, for the meta device has lost them.
    """
    packed.to_empty(device="cpu" if offloaded else device)
    model = packed.hf
    for name, buffer in model.named_buffers():
        received = _broadcast(source.get_buffer(name) if source is not None else None, buffer, device)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, received)
    for name, parameter in model.named_parameters():
        whole = _broadcast(source.get_parameter(name) if source is not None else None, parameter, device)
        part = local(parameter)
        ranges = zip(box_of(parameter).offset, part.shape, strict=True)
        part.copy_(whole[tuple(slice(start, start + size) for start, size in ranges)])


def gather(parameter: Tensor) -> Tensor:
    """Return a parameter whole, on every rank, on the device. Collective.

    Data ranks share what their tensor rank holds: parts are joined in the other order than they were cut in.
    """
    assert isinstance(parameter, DTensor)
    mesh, size, cuts = parameter.device_mesh, list(parameter.shape), []
    for axis in reversed(range(mesh.ndim)):
        place: Any = parameter.placements[axis]  # Any: torch's two kinds of shards have no common class
        if not place.is_replicate():
            cuts.append((axis, place.dim, size[place.dim]))
            size[place.dim] = len(share_of(size[place.dim], mesh.size(axis), mesh.get_local_rank(axis)))
    whole = local(parameter).to(mesh.device_type)  # offloaded ones are on the host
    for axis, dim, total in reversed(cuts):
        whole = joined(whole, dim, total, mesh.get_group(axis))
    return whole


def _is_wrapped(model: Model, wrap: str) -> bool:
    """Return whether layers are gathered on their own; the root gathers the rest, or everything."""
    small = sum(parameter.nbytes for parameter in model.parameters()) < SMALL_BYTES
    return wrap == "layer" or (wrap == "auto" and not small)


def _layers(model: Model) -> Sequence[nn.Module]:
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _broadcast(held: Tensor | None, like: Tensor, device: torch.device) -> Tensor:
    tensor = torch.empty(like.shape, dtype=like.dtype, device=device) if held is None else held.detach().to(device)
    if dist.get_world_size() > 1:
        dist.broadcast(tensor.contiguous(), src=0)
    return tensor
