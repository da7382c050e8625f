"""A weight-transfer engine of vLLM's own kind: its workers take part in the group a sender broadcasts in.

vLLM's own, for NCCL and CUDA IPC, meet a sender that runs vLLM's trainer side; this one meets any that keeps to
`areal_torch.collective.rank_slot`, on any device, gloo included.

Knows: vLLM's weight-transfer interface, the group of a `RankSlot`.
Does not know: who sends, or versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from areal_serving.weights import fingerprint
from areal_torch.collective.group import BroadcastGroup
from areal_torch.collective.rank_slot import RankSlot
from areal_vllm.inside import loading


@dataclass(kw_only=True)
class RankSlotInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """A `RankSlot`, field by field; `first_rank` is that of worker 0."""

    address: str
    port: int
    group_name: str
    backend: str
    first_rank: int
    num_ranks: int
    world_size: int
    timeout_s: float
    secret: str = field(default="", repr=False)
    route: str = "broadcast"


@dataclass(kw_only=True)
class BroadcastInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Names, dtypes and shapes of the tensors to come, in their order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GroupWeightTransferEngine(WeightTransferEngine[RankSlotInfo, BroadcastInfo]):  # type: ignore[misc]
    """Takes one broadcast per tensor from rank 0 and loads it as it comes. Any: vLLM's own types."""

    init_info_cls = RankSlotInfo
    update_info_cls = BroadcastInfo
    _group: BroadcastGroup | None = None
    _wanted: set[str]

    def init_transfer_engine(self, init_info: RankSlotInfo) -> None:
        """Join the sender's group; every worker has a rank of its own in it."""
        from torch._C._distributed_c10d import TCPStore

        self.shutdown()
        rank = init_info.first_rank + self.parallel_config.rank
        slot = RankSlot(**{**vars(init_info), "first_rank": rank, "num_ranks": 1})
        store = TCPStore(slot.address, slot.port, is_master=False, wait_for_workers=False)
        self._group = BroadcastGroup(slot, store)

    def start_weight_update(self) -> None:
        """Open every layer for loading."""
        self.received: dict[str, str] = {}
        self._loaded: set[str] = set()
        self._wanted = loading.open_layers(self.model, self.device)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load; the base class then waits for the accelerator, which the CPU does not have."""
        if self.device.type != "cpu":
            super().update_weights(update_info)
            return
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: BroadcastInfo) -> None:
        """Load every tensor as it comes."""
        self._loaded |= set(self.model.load_weights(self._arriving(update_info)) or self._wanted)

    def finish_weight_update(self) -> None:
        """Pack every layer again.

        Raises:
            LoadIncomplete: a parameter was left out.
        """
        loading.close_layers(self.model, self.model_config, self.device)
        loading.expect_whole(self._wanted, self._loaded)

    def shutdown(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _arriving(self, info: BroadcastInfo) -> Iterator[tuple[str, Tensor]]:
        assert self._group is not None, "init_transfer_engine comes first"
        for name, dtype, shape in zip(info.names, info.dtypes, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self._group.device)
            self._group.broadcast(tensor.view(-1).view(torch.uint8))
            self.received[name] = fingerprint(tensor)
            yield name, tensor
