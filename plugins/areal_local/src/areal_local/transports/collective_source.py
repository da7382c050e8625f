"""The receiving end of a streamed transfer: it reads buckets, or only takes slots for an engine's own ranks.

Knows: one receiver's part in a transfer.
Does not know: the sender, except by what it announces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, TensorSpec, WeightManifest
from areal_core.weights.tensors import num_bytes, torch_dtype
from areal_torch.bucketing import bucket_specs
from areal_torch.collective.group import BroadcastGroup, place
from areal_torch.collective.rank_slot import RankSlot
from areal_torch.collective.rendezvous import Rendezvous

_ALIGNED = 64
_SENDER = "the sender, trainer rank 0"


class GroupCache:
    """The group a process keeps between versions. It is out while a transfer uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: BroadcastGroup | None = None
        self._closed = False

    def held(self) -> str:
        """Return the name of the group kept, or ""."""
        with self._lock:
            return self._kept.slot.group_name if self._kept else ""

    def take(self, name: str) -> BroadcastGroup | None:
        """Hand the kept group over if it has this name; else drop it, for it will not be used again."""
        with self._lock:
            group, self._kept = self._kept, None
        if group is not None and group.slot.group_name != name:
            group.close()
            return None
        return group

    def keep(self, group: BroadcastGroup) -> None:
        """Keep a group that is whole."""
        with self._lock:
            old, self._kept = (group, None) if self._closed else (self._kept, group)
        if old is not None:
            old.close()

    def close(self) -> None:
        """Leave the group, and any that is handed back later. Idempotent."""
        with self._lock:
            group, self._kept, self._closed = self._kept, None, True
        if group is not None:
            group.close()


class CollectiveSource:
    """A receiver: `buckets` joins the group here; `take_slot` lets an engine's own workers join it instead."""

    def __init__(self, rendezvous: Rendezvous, offer: Offer, cache: GroupCache) -> None:
        self._rendezvous = rendezvous
        self._version = offer.version
        self._bucket_bytes = int(offer.location["bucket_bytes"])
        self._cache = cache
        self._manifest: WeightManifest | None = None
        self._group: BroadcastGroup | None = None
        self._why = "it closed its source before the end"
        self._open = True
        self.done = False

    @property
    def manifest(self) -> WeightManifest:
        """Return what the sender announced; wait until it did."""
        if self._manifest is None:
            self._must_be_open()
            told = self._rendezvous.read("manifest", _SENDER)
            self._manifest = WeightManifest(
                version=self._version,
                tensors=tuple(TensorSpec(name=n, shape=tuple(s), dtype=d) for n, s, d in told["tensors"]),
                tied=told["tied"],
            )
        return self._manifest

    def take_slot(self, num_ranks: int, *, device: str = "cpu", held: str = "", signs: bool = False) -> RankSlot:
        """Take part with ranks of an engine's own; once, instead of `buckets`."""
        self._must_be_open()
        _ = self.manifest
        me = int(self._rendezvous.me)
        self._rendezvous.post(f"ready/{me}", {"ranks": num_ranks, "place": device, "held": held, "signs": signs})
        group = self._rendezvous.read("group", f"{_SENDER}: not every receiver has come, or it died")
        return RankSlot(
            address=self._rendezvous.address,
            port=self._rendezvous.port,
            group_name=str(group["name"]),
            backend=str(group["backend"]),
            first_rank=int(group["first"][me]),
            num_ranks=num_ranks,
            world_size=int(group["world"]),
            timeout_s=self._rendezvous.timeout_s,
            secret=self._rendezvous.ticket if group["signed"] else "",
        )

    def wait_finished(self) -> None:
        """Wait until the sender has sent everything."""
        self._must_be_open()
        self._rendezvous.read("finished", _SENDER)
        self.done = True

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield every tensor once, as views of memory that the next bucket overwrites.

        Raises:
            WeightSyncError: the sender left, or did not finish; what was read is void.
        """
        self._must_be_open()
        cut = bucket_specs(self.manifest.tensors, self._bucket_bytes)
        try:
            self._group = self._join()
            room = max((_room(specs) for specs in cut), default=0)
            memory = torch.empty(room, dtype=torch.uint8, pin_memory=self._group.device.type != "cpu")
            for specs in cut:
                self._rendezvous.check_open()
                yield self._receive(specs, memory)
                self._must_be_open()
            self.wait_finished()
            self._cache.keep(self._group)
            self._group = None
        except RuntimeError as error:
            raise self._broken(error) from error
        finally:
            self.close()

    def close(self) -> None:
        """Leave; before the end that ends the transfer for everybody. Idempotent."""
        if not self._open:
            return
        self._open = False
        if self.done:
            self._rendezvous.part()
        else:
            self._rendezvous.leave(self._why)
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _join(self) -> BroadcastGroup:
        slot = self.take_slot(1, device=place(), held=self._cache.held(), signs=True)
        return self._cache.take(slot.group_name) or BroadcastGroup(slot, self._rendezvous.connection)

    def _receive(self, specs: Sequence[TensorSpec], memory: Tensor) -> dict[str, Tensor]:
        assert self._group is not None
        bucket: dict[str, Tensor] = {}
        start = 0
        for spec in specs:
            view = memory[start : start + num_bytes(spec)]
            if self._group.device.type == "cpu":
                self._group.broadcast(view)
            else:
                arrived = torch.empty(view.shape, dtype=torch.uint8, device=self._group.device)
                self._group.broadcast(arrived)
                view.copy_(arrived)
            bucket[spec.name] = view.view(torch_dtype(spec)).reshape(spec.shape)
            start += _aligned(num_bytes(spec))
        return bucket

    def _must_be_open(self) -> None:
        if not self._open:
            raise WeightSyncError("the weight source was closed", why="an offer is good for one reading")

    def _broken(self, error: RuntimeError) -> WeightSyncError:
        self._why = f"its broadcast failed: {str(error).splitlines()[0]}"
        self.close()
        return WeightSyncError(
            f"version {self._version} did not arrive whole",
            why=f"{self._rendezvous.blame(())} ({str(error).splitlines()[0]})",
        )


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _room(specs: Sequence[TensorSpec]) -> int:
    return sum(_aligned(num_bytes(spec)) for spec in specs)
