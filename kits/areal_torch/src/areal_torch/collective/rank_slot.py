"""Where the ranks of one receiver sit in a sender's process group: for engines whose own workers join it.

Knows: what such an engine has to be told.
Does not know: process groups; imports no torch.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from attrs import field, frozen

BROADCAST, CHAIN = "broadcast", "chain"


@frozen(kw_only=True)
class RankSlot:
    """Ranks [first_rank, first_rank + num_ranks) of a group of `world_size`; rank 0 sends.

    The group is the one `torch.distributed.init_process_group(backend, init_method="tcp://address:port", ...)` makes
    in a store under the prefix `group_name`, with that group name: what SGLang's `init_weights_update_group` does.
    Where `secret` is not "" that store is a `SignedStore` with it, as `BroadcastGroup` makes one.
    In it every tensor of the manifest is one broadcast from rank 0, in the announced order. Where `route` is "chain",
    which it is only for those who join by `BroadcastGroup`, that passes tensors from rank to rank instead.

    Example: RankSlot(address="127.0.0.1", port=40123, group_name="areal-1f0c", backend="gloo", first_rank=1,
        num_ranks=2, world_size=4, timeout_s=60.0)
    """

    address: str
    port: int
    group_name: str
    backend: str
    first_rank: int
    num_ranks: int
    world_size: int
    timeout_s: float
    secret: str = field(default="", repr=False)
    route: str = BROADCAST


@runtime_checkable
class SlotSource(Protocol):
    """What a `WeightSource` has besides, if an engine's own workers may take part instead of reading `buckets`.

    `manifest` tells them what comes; `close` before the end ends the transfer for everybody.
    """

    def take_slot(self, num_ranks: int, *, device: str = "cpu", held: str = "", signs: bool = False) -> RankSlot:
        """Take part with `num_ranks` ranks of the engine's own, on `device`; once, instead of `buckets`.

        Blocks until every receiver has come. `held` is the name of the group the engine's workers still have from the
        transfer before: where the slot has the same name they need not join again, else they must leave that one.
        `signs` tells that they join by `BroadcastGroup`, which uses `secret` and `route`; they are "" and "broadcast"
        unless every receiver does.

        Raises:
            WeightSyncError: the transfer was given up; says by whom.
        """

    def wait_finished(self) -> None:
        """Tell that the engine's workers took everything; return once every receiver has. Before the receipt.

        Raises:
            WeightSyncError: the transfer was given up; what the workers took is void.
        """
