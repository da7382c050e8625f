"""A weight-transfer engine of vLLM's own kind over gloo: its workers take part in the sender's broadcasts.

vLLM brings engines for NCCL and CUDA IPC; on the CPU, and where two ranks share a device, neither works. This one
joins the group a `Seat` describes and takes one broadcast per tensor, in the order announced.

Knows: vLLM's weight-transfer interface, the group of `areal_core.weights.seat`.
Does not know: who sends, or versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from areal_core.weights.collective_group import Group
from areal_core.weights.seat import Seat


@dataclass(kw_only=True)
class SeatInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """A `Seat`, field by field; rank `first_rank` is that of this engine's worker 0."""

    address: str
    port: int
    group_name: str
    backend: str
    first_rank: int
    num_ranks: int
    world_size: int
    timeout_s: float


@dataclass(kw_only=True)
class BroadcastInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Names, dtypes and shapes of the tensors to come, in their order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine[SeatInfo, BroadcastInfo]):  # type: ignore[misc]
    """Takes broadcasts from rank 0 and loads each tensor as it comes. Any: vLLM's own types."""

    init_info_cls = SeatInfo
    update_info_cls = BroadcastInfo
    _group: Group | None = None

    def init_transfer_engine(self, init_info: SeatInfo) -> None:
        """Join the sender's group; every worker has a rank of its own in it."""
        from torch._C._distributed_c10d import TCPStore

        self.shutdown()
        rank = init_info.first_rank + self.parallel_config.rank
        seat = Seat(**{**vars(init_info), "first_rank": rank, "num_ranks": 1})
        store = TCPStore(seat.address, seat.port, is_master=False, wait_for_workers=False)
        self._group = Group(seat, store)

    def start_weight_update(self) -> None:
        """Open every layer for loading."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Pack every layer again."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load; the base class waits for an accelerator, which the CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: BroadcastInfo) -> None:
        """Load every tensor as it comes."""
        self.model.load_weights(self._arriving(update_info))

    def shutdown(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _arriving(self, info: BroadcastInfo) -> Iterator[tuple[str, Tensor]]:
        assert self._group is not None, "init_transfer_engine comes first"
        for name, dtype, shape in zip(info.names, info.dtypes, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(tensor.view(-1).view(torch.uint8))
            yield name, tensor
