"""How a transformers model is cut over ranks by FSDP2, and filled from rank 0.

Knows: meshes, wrapping units, DTensors.
Does not know: batches, optimizers, files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from areal_core.training.hf import Model
from areal_core.training.model import PackedModel
from areal_core.training.optimizer import local
from areal_fsdp.config import FSDPConfig

SMALL_BYTES = 64 << 20


def shard(model: PackedModel, mesh: DeviceMesh, dtype: torch.dtype, config: FSDPConfig) -> FSDPModule:
    """Cut every parameter over `mesh` in place: one unit per decoder layer and one for the rest.

    Parameters stay float32; layers compute in `dtype`; gradients are reduced in float32.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    offload: OffloadPolicy = OffloadPolicy()
    if config.cpu_offload and mesh.device_type != "cpu":
        offload = CPUOffloadPolicy()
    for layer in _units(model.hf, config.wrap):
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
        assert isinstance(parameter, DTensor)
        piece = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        local(parameter).copy_(local(piece))


def gather(parameter: Tensor) -> Tensor:
    """Return a parameter whole, on every rank, on the device. Collective."""
    sharded: Any = parameter.detach()  # Any: a DTensor, whose methods are not all typed
    if sharded.device.type != sharded.device_mesh.device_type:  # offloaded to the host
        sharded = sharded.to(sharded.device_mesh.device_type)
    whole: Tensor = sharded.full_tensor()
    return whole


def _units(model: Model, wrap: str) -> Iterable[nn.Module]:
    """Return the modules that are gathered on their own; the root gathers the rest."""
    small = sum(parameter.nbytes for parameter in model.parameters()) < SMALL_BYTES
    if wrap == "root" or (wrap == "auto" and small):
        return []
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _broadcast(held: Tensor | None, like: Tensor, device: torch.device) -> Tensor:
    tensor = torch.empty(like.shape, dtype=like.dtype, device=device) if held is None else held.detach().to(device)
    if dist.get_world_size() > 1:
        dist.broadcast(tensor.contiguous(), src=0)
    return tensor
