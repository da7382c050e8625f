"""The receiving end of a streamed transfer: it reads buckets, or only takes slots for an engine's own ranks.

Knows: one receiver's part in a transfer.
Does not know: the sender, except by what it announces.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import torch
from torch import Tensor

from areal_core.contract.device import CPU
from areal_core.contract.errors import FingerprintMismatch, WeightSyncError
from areal_core.contract.weights import Offer, TensorSpec, WeightManifest
from areal_core.weights.tensors import num_bytes, torch_dtype
from areal_local.transports.ahead import one_ahead
from areal_local.transports.delta_base import Incoming, KeptVersion
from areal_torch.bucketing import bucket_specs
from areal_torch.collective.group import BroadcastGroup, place
from areal_torch.collective.rank_slot import RankSlot
from areal_torch.collective.rendezvous import Rendezvous

_ALIGNED = 64
_SENDER = "the sender, trainer rank 0"


class GroupCache:
    """The group a process keeps between versions, and a receiver's memory. They are out while a transfer uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: BroadcastGroup | None = None
        self._memories: Sequence[Tensor] = ()
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

    def take_memories(self, count: int, num_bytes: int, *, pinned: bool) -> Sequence[Tensor]:
        """Return memories of at least so many bytes, uint8: those kept, whose pages are there already, or new ones."""
        with self._lock:
            kept, self._memories = self._memories, ()
        if len(kept) == count and all(one.numel() >= num_bytes and one.is_pinned() == pinned for one in kept):
            return kept
        del kept  # gone before there are others
        return [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(count)]

    def keep_memories(self, memories: Sequence[Tensor]) -> None:
        """Keep memories that nothing arrives in or leaves from any more."""
        with self._lock:
            self._memories = () if self._closed else memories

    def close(self) -> None:
        """Leave the group, and any that is handed back later. Idempotent."""
        with self._lock:
            group, self._kept, self._closed, self._memories = self._kept, None, True, ()
        if group is not None:
            group.close()


class CollectiveSource:
    """A receiver: `buckets` joins the group here; `take_slot` lets an engine's own workers join it instead."""

    def __init__(
        self, rendezvous: Rendezvous, offer: Offer, cache: GroupCache, kept: KeptVersion | None = None
    ) -> None:
        self._rendezvous = rendezvous
        self._kept = kept if offer.location["delta"] else None
        self._base: str | None = None
        self._mark = ""
        self._version = offer.version
        self._bucket_bytes = int(offer.location["bucket_bytes"])
        self._cache = cache
        self._manifest: WeightManifest | None = None
        self._group: BroadcastGroup | None = None
        self._why = "it closed its source before the end"
        self._seats: tuple[str, ...] = ()
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

    def take_slot(
        self, num_ranks: int, *, device: str = "cpu", held: str = "", signs: bool = False, kept: str | None = None
    ) -> RankSlot:
        """Take part with ranks of an engine's own; once, instead of `buckets`. `kept` marks what changes may be of."""
        self._must_be_open()
        _ = self.manifest
        me = int(self._rendezvous.me)
        told = {"ranks": num_ranks, "place": device, "held": held, "signs": signs, "host": self._rendezvous.host}
        told |= {} if kept is None else {"kept": kept}
        self._rendezvous.post(f"ready/{me}", told)
        group = self._rendezvous.read("group", f"{_SENDER}: not every receiver has come, or it died")
        self._seats, self._base = tuple(group["seats"]), group["delta"]
        self._rendezvous.num_receivers = len(group["first"])
        return RankSlot(
            address=self._rendezvous.address,
            port=self._rendezvous.port,
            group_name=str(group["name"]),
            backend=str(group["backend"]),
            first_rank=int(group["first"][me]),
            num_ranks=num_ranks,
            world_size=len(self._seats),
            timeout_s=self._rendezvous.timeout_s,
            secret=self._rendezvous.ticket if group["signed"] else "",
            route=str(group["route"]),
        )

    def wait_finished(self) -> None:
        """Tell that everything has arrived; wait until the sender knows it of everybody."""
        self._must_be_open()
        self._rendezvous.post(f"arrived/{self._rendezvous.me}", {})
        self._mark = str(self._rendezvous.read("finished", _SENDER)["mark"])
        self.done = True

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield every tensor once, as views of memory that is used again for the bucket after the next.

        Raises:
            WeightSyncError: the sender left, or did not finish; what was read is void.
            FingerprintMismatch: it is not what the sender has, after changes were made to what was kept here.
        """
        self._must_be_open()
        cut = bucket_specs(self.manifest.tensors, self._bucket_bytes)
        try:
            self._group = self._join()
            incoming = self._incoming(self._group)
            memories = () if incoming else self._memories(self._group, cut)
            yield from self._arriving(self._group, cut, incoming, memories)
            self._group.settle()
            self.wait_finished()
            self._cache.keep(self._group)
            self._group = None
            self._cache.keep_memories(memories)
            if incoming is not None:
                self._keep(incoming)
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
        mark = None if self._kept is None else self._kept.mark()
        slot = self.take_slot(1, device=place(), held=self._cache.held(), signs=True, kept=mark)
        kept = self._cache.take(slot.group_name)
        return kept or BroadcastGroup(slot, self._rendezvous.connection, self._seats)

    def _incoming(self, group: BroadcastGroup) -> Incoming | None:
        """Return what makes whole tensors of changes, where that is what comes."""
        if self._kept is None or self._base is None:
            return None
        return Incoming(self._kept.take(self._base), partial(fill, group))

    def _keep(self, incoming: Incoming) -> None:
        assert self._kept is not None
        if incoming.mark != self._mark:
            raise FingerprintMismatch(
                f"version {self._version} is not what was sent, after its changes were made here",
                why="the version kept here, or a change on its way, was damaged",
                fix="look for failing memory; the next version travels whole",
            )
        self._kept.keep(incoming.mark, incoming.tensors)

    def _arriving(
        self,
        group: BroadcastGroup,
        cut: Sequence[Sequence[TensorSpec]],
        incoming: Incoming | None,
        memories: Sequence[Tensor],
    ) -> Iterator[Mapping[str, Tensor]]:
        """Receive a bucket while the one before is used; on a device that may not be done in another thread."""
        jobs = [
            partial(incoming.receive, specs)
            if incoming
            else partial(self._receive, group, specs, memories[number % len(memories)])
            for number, specs in enumerate(cut)
        ]
        with closing(one_ahead(jobs) if group.device.type == CPU else (job() for job in jobs)) as buckets:
            try:
                for bucket in buckets:
                    self._rendezvous.check_open()
                    yield bucket
                    self._must_be_open()
            except BaseException as error:
                self._end(error)  # and with it what is still being received
                raise

    def _memories(self, group: BroadcastGroup, cut: Sequence[Sequence[TensorSpec]]) -> Sequence[Tensor]:
        """Return memory for the bucket that is used, and on the host for the next one, too."""
        on_host = group.device.type == CPU
        room = max((_room(specs) for specs in cut), default=0)
        return self._cache.take_memories(len(cut[: 1 + on_host]), room, pinned=not on_host)

    def _receive(self, group: BroadcastGroup, specs: Sequence[TensorSpec], memory: Tensor) -> dict[str, Tensor]:
        starts = itertools.accumulate((_aligned(num_bytes(spec)) for spec in specs), initial=0)
        views = [memory[start : start + num_bytes(spec)] for spec, start in zip(specs, starts, strict=False)]
        fill(group, views)
        return {
            spec.name: view.view(torch_dtype(spec)).reshape(spec.shape) for spec, view in zip(specs, views, strict=True)
        }

    def _must_be_open(self) -> None:
        if not self._open:
            raise WeightSyncError("the weight source was closed", why="an offer is good for one reading")

    def _end(self, error: BaseException) -> None:
        if isinstance(error, RuntimeError) and self._open:
            self._why = str(error).splitlines()[0]
        self.close()

    def _broken(self, error: RuntimeError) -> WeightSyncError:
        self._end(error)
        return WeightSyncError(
            f"version {self._version} did not arrive whole",
            why=f"{self._rendezvous.blame(())} ({self._why})",
        )


def fill(group: BroadcastGroup, views: Sequence[Tensor]) -> None:
    """Receive bytes into memory of the host."""
    if group.device.type == CPU:
        group.stream(views)
        return
    for view in views:
        arrived = torch.empty(view.shape, dtype=torch.uint8, device=group.device)
        group.broadcast(arrived)
        view.copy_(arrived)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _room(specs: Sequence[TensorSpec]) -> int:
    return sum(_aligned(num_bytes(spec)) for spec in specs)
