"""Weights through a process group, from trainer rank 0 to every receiver at once.

Knows: how the ends find each other, and what a complete transfer is.
Does not know: engines. Keys are exchanged in `areal_torch.collective.rendezvous`, the group is made by
`areal_torch.collective.group`, who sits where in it is decided in `seating`, what changed is told by `delta_base`, a
receiver's end is `collective_source`.

The group is kept for the next version as long as every participant still has it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from areal_core.contract.errors import CoverageError, WeightSyncError
from areal_core.contract.weights import Offer, TensorSpec, WeightManifest
from areal_core.weights.tensors import num_bytes
from areal_local.descriptors import make_room_for_strangers
from areal_local.transports.collective_source import CollectiveSource, GroupCache
from areal_local.transports.config import CollectiveConfig
from areal_local.transports.delta_base import KeptVersion, Outgoing
from areal_local.transports.seating import Seating, seat
from areal_local.transports.sink import CheckedSink
from areal_torch.bucketing import bucket_specs
from areal_torch.collective.group import BroadcastGroup
from areal_torch.collective.rank_slot import RankSlot
from areal_torch.collective.rendezvous import Connections, Rendezvous, Store
from areal_torch.proved_copy import prove

logger = logging.getLogger("areal.weights")


class CollectiveTransport:
    """The transport `collective`. The offer holds all a worker needs, so workers may use any config."""

    def __init__(self, config: CollectiveConfig | None = None) -> None:
        self._config = config or CollectiveConfig()
        self._store: Store | None = None
        self.cache = GroupCache()
        self.kept = KeptVersion()
        self.connections = Connections()

    def open(self, version: int) -> Offer:
        """Make the rendezvous of the ends of one transfer."""
        if self._store is None:
            make_room_for_strangers()
            self._store = Store(self._config.host, self._config.timeout_s)
        location: dict[str, str | int] = {
            "address": self._store.host,
            "port": self._store.port,
            "ticket": self._store.add(version),
            "backend": self._config.backend,
            "fan_out": self._config.fan_out,
            "delta": int(self._config.delta),
            "bucket_bytes": self._config.bucket_bytes,
            "timeout_ms": max(1, round(self._config.timeout_s * 1000)),
        }
        return Offer(transport="collective", version=version, location=location)

    def expect(self, offer: Offer, receivers: Sequence[str]) -> tuple[Offer, ...]:
        """Tell who will receive; return an offer for each."""
        if not receivers or len(set(receivers)) < len(receivers):
            raise WeightSyncError(
                f"version {offer.version} has no receivers, or one twice",
                why=f"named: {list(receivers)}",
            )
        if self._store is None or not self._store.expect(str(offer.location["ticket"]), receivers):
            raise WeightSyncError(f"version {offer.version} is expected nowhere", why="the offer was released")
        return tuple(evolve(offer, location={**offer.location, "receiver": number}) for number in range(len(receivers)))

    def sink(self, offer: Offer) -> CheckedSink:
        """Make the sending end."""
        return CheckedSink(
            Broadcaster(Rendezvous(offer, self.connections), offer, self.cache, self.kept),
            version=offer.version,
            bucket_bytes=int(offer.location["bucket_bytes"]),
        )

    def source(self, offer: Offer) -> CollectiveSource:
        """Make a receiving end; the offer is one of those `expect` returned."""
        if "receiver" not in offer.location:
            raise WeightSyncError(
                f"version {offer.version} was offered to a sender", why="each receiver has its own offer"
            )
        return CollectiveSource(Rendezvous(offer, self.connections), offer, self.cache, self.kept)

    def release(self, offer: Offer) -> None:
        """End the transfer, finished or not. Idempotent."""
        if self._store is not None:
            self._store.remove(str(offer.location["ticket"]))

    def close(self) -> None:
        """Leave the group, and end the store with every transfer in it. Idempotent."""
        self.cache.close()
        self.kept.take("")
        self.connections.close()
        self._store = None


class Broadcaster:
    """The sender's `BucketStore`, which stores nothing: `seal` tells the receivers that what they have is a version."""

    def __init__(
        self, rendezvous: Rendezvous, offer: Offer, cache: GroupCache, kept: KeptVersion | None = None
    ) -> None:
        self._rendezvous = rendezvous
        self._version = offer.version
        self._bucket_bytes = int(offer.location["bucket_bytes"])
        self._wanted = {key: str(offer.location[key]) for key in ("backend", "fan_out")}
        self._kept = kept if offer.location["delta"] else None
        self.outgoing: Outgoing | None = None
        self.cache = cache
        self._names: Sequence[str] = ()
        self._specs: tuple[TensorSpec, ...] = ()
        self._next = 0
        self.group: BroadcastGroup | None = None
        self._why = "it was aborted"

    def begin(self, manifest: WeightManifest) -> None:
        """Announce, wait for every receiver, and make the group unless all of them still have the one before."""
        self._specs = manifest.tensors
        self._names = self._rendezvous.read("receivers", "the controller, who has to tell who receives")
        self._rendezvous.post(
            "manifest",
            {
                "tensors": [[spec.name, list(spec.shape), spec.dtype] for spec in manifest.tensors],
                "tied": dict(manifest.tied),
            },
        )
        self.group = self._form_group(self._rendezvous.roll_call(self._names, "ready"))

    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        """Send whole tensors; return their fingerprints. Only copies made here may still be leaving."""
        assert self.group is not None
        self._rendezvous.check_open()
        if self.outgoing is not None:
            return self._write_changes(self.outgoing, bucket)
        for name in bucket:
            self._check_order(name)
        wholes = [tensor.detach().to(self.group.device).contiguous() for tensor in bucket.values()]
        self._stream([whole.reshape(-1).view(torch.uint8) for whole in wholes])
        digits = prove(wholes)  # while the bytes leave
        if any(whole.data_ptr() == tensor.data_ptr() for whole, tensor in zip(wholes, bucket.values(), strict=True)):
            with self._breaking():
                self.group.settle()
        return dict(zip(bucket, digits, strict=True))

    def _write_changes(self, outgoing: Outgoing, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        for name in bucket:
            self._check_order(name)
        self._stream(outgoing.write(bucket))
        return outgoing.prove(list(bucket))

    def _stream(self, flats: Sequence[Tensor]) -> None:
        assert self.group is not None
        with self._breaking():
            self.group.stream([flat.to(self.group.device) for flat in flats])

    def seal(self) -> None:
        """Wait until every receiver has everything, and tell them so; keep the group."""
        assert self.group is not None
        with self._breaking():
            self.group.settle()
        self._rendezvous.check_open()
        self._rendezvous.roll_call(self._names, "arrived")
        self._rendezvous.post("finished", {"mark": self.outgoing.mark if self.outgoing else ""})
        self.cache.keep(self.group)
        self.group = None
        self._rendezvous.part()
        if self.outgoing is not None and self._kept is not None:
            self._kept.keep(self.outgoing.mark, self.outgoing.tensors)
            size = sum(num_bytes(spec) for spec in self._specs)
            logger.info("version %d travelled as %d of %d bytes", self._version, self.outgoing.num_bytes, size)

    def discard(self) -> None:
        """Leave; receivers in the middle of a broadcast are woken by that. Idempotent."""
        self._rendezvous.leave(self._why)
        group, self.group = self.group, None
        if group is not None:
            group.close()

    def _check_order(self, name: str) -> None:
        expected = self._specs[self._next].name
        if name != expected:
            self._why = "it sent tensors in another order than it announced"
            raise CoverageError(
                f"tensor {name!r} was sent before {expected!r}",
                why="tensors are streamed in the announced order, which receivers rely on",
                fix="announce tensors in the order they are written",
            )
        self._next += 1

    def _form_group(self, told: Sequence[Mapping[str, Any]]) -> BroadcastGroup:  # Any: JSON
        try:
            seating = seat(self._names, told, host=self._rendezvous.host, **self._wanted)
        except WeightSyncError as error:
            self._why = str(error).splitlines()[0]
            raise
        held = {str(one["held"]) for one in told}
        kept = self.cache.take(held.pop() if len(held) == 1 else "")
        if kept is not None and (kept.seats, kept.slot.route) != (seating.seats, seating.route):
            kept.close()
            kept = None
        slot = kept.slot if kept else self._slot(seating)
        self._rendezvous.post(
            "group",
            {
                "name": slot.group_name,
                "backend": slot.backend,
                "route": slot.route,
                "signed": bool(slot.secret),
                "delta": self._base(told),
                "first": seating.firsts,
                "seats": seating.seats,
            },
        )
        if kept is not None:
            return kept
        logger.info("weights travel over %s", seating)
        with self._breaking():
            return BroadcastGroup(slot, self._rendezvous.connection, seating.seats)

    def _base(self, told: Sequence[Mapping[str, Any]]) -> str | None:  # Any: JSON
        """Return the mark of the version that changes are told of, "" for none, None where somebody takes no changes.

        Every receiver has to have that version, and what is sent now the same tensors; else all of them go whole.
        """
        if self._kept is None:
            return None
        marks, mark = {one.get("kept") for one in told}, self._kept.mark()
        of = mark if marks == {mark} else ""
        kept = self._kept.take(of)
        if None in marks:
            return None
        self.outgoing = Outgoing(kept, bucket_specs(self._specs, self._bucket_bytes))
        return of

    def _slot(self, seating: Seating) -> RankSlot:
        return RankSlot(
            address=self._rendezvous.address,
            port=self._rendezvous.port,
            group_name=f"areal-{secrets.token_hex(12)}",
            backend=seating.backend,
            first_rank=0,
            num_ranks=1,
            world_size=seating.world_size,
            timeout_s=self._rendezvous.timeout_s,
            secret=self._rendezvous.ticket if seating.signed else "",
            route=seating.route,
        )

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Leave a group that broke, and say who is to blame."""
        try:
            yield
        except RuntimeError as error:
            self._why = str(error).splitlines()[0]
            self.discard()
            raise WeightSyncError(
                f"version {self._version} could not be streamed to {', '.join(self._names)}",
                why=f"{self._rendezvous.blame(self._names)} ({self._why})",
            ) from error
