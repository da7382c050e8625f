"""Broken transports: offers that can be read too early, too late or instead of another.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, WeightManifest
from areal_core.weights.sink import CheckedSink
from areal_local.transports import shm
from areal_local.transports.disk import DiskTransport
from areal_local.transports.layout import mark
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.weight_parts import PassingSink, PassingSource
from areal_proof.second.transport import SecondTransport
from areal_proof.second.transport_server import Server


class _PatientSink(PassingSink):
    """Knows the folder of its version."""

    def __init__(self, inner: Any, offer: Offer) -> None:  # Any: the transport's own class
        super().__init__(inner)
        self.folder = Path(str(offer.location["folder"]))


@mutant("transport/disk", killers=("transport.finish.makes_readable", "transport.machine"))
class ReadableWhenWritten(DiskTransport):
    """The version can be read as soon as the last byte is written, before `finish`."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def write(self, bucket: Mapping[str, Tensor]) -> None:
                super().write(bucket)
                if len(self.inner._coverage._fingerprints) == len(self.inner._coverage._specs):
                    self.inner._store.seal()

        return Sink(super().sink(offer))


@mutant("transport/second", killers=("transport.fault.sender_killed", "transport.finish.makes_readable"))
class ReadableFromTheStart(SecondTransport):
    """What was announced can be read; what has not come yet is zeros."""

    def open(self, version: int) -> Offer:
        if self._server is None:
            self._server = _HastyServer()
        return super().open(version)


class _HastyServer(Server):
    def _do_manifest(self, me: int, shelf: Any, request: Any, payload: Any) -> Any:
        for name, shape, dtype in shelf.announced:
            shelf.data.setdefault(name, bytearray(math.prod(shape) * getattr(torch, dtype).itemsize))
        return {"tensors": shelf.announced, "tied": shelf.tied}, b""

    def _clear(self, me: int, shelf: Any) -> None:
        """Keep it."""


@mutant("transport/disk", killers=("transport.finish.makes_readable",), row="dead-peer")
class WaitsForTheSender(DiskTransport):
    """A source of what was never finished waits for it, without an end."""

    def source(self, offer: Offer) -> Any:
        try:
            return super().source(offer)
        except WeightSyncError:
            threading.Event().wait(40.0)
            raise


@mutant("transport/disk", killers=("transport.finish.once",))
class WritesAfterFinish(DiskTransport):
    """A write that comes after `finish` begins the version anew."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        outer = self

        class Sink(PassingSink):
            def begin(self, manifest: WeightManifest) -> None:
                self.manifest = manifest
                super().begin(manifest)

            def write(self, bucket: Mapping[str, Tensor]) -> None:
                if not self.inner._open:
                    self.inner = DiskTransport.sink(outer, offer)
                    self.inner.begin(self.manifest)
                super().write(bucket)

        return Sink(super().sink(offer))


@mutant("transport/disk", killers=("transport.abort.unreadable",), row="update-chain")
class AbortKeepsWhatItHas(DiskTransport):
    """An aborted version that was wholly written can be read."""

    def sink(self, offer: Offer) -> PassingSink:  # type: ignore[override]
        class Sink(PassingSink):
            def abort(self) -> None:
                coverage = self.inner._coverage
                if coverage is not None and len(coverage._fingerprints) == len(coverage._specs) and self.inner._open:
                    self.inner.finish()
                self.inner.abort()

        return Sink(super().sink(offer))


@mutant("transport/shm", killers=("transport.version.follow",))
class KeepsWhatLooksAlike(ShmTransport):
    """A version whose tensors are named and sized like those of the one before is cleared and not written again."""

    seen: tuple[Any, ...] | None = None

    def sink(self, offer: Offer) -> Any:
        outer = self

        class Sink(PassingSink):
            skip = False

            def begin(self, manifest: WeightManifest) -> None:
                names = tuple(manifest.tensors)
                self.skip, outer.seen = outer.seen == names, names
                super().begin(manifest)

            def write(self, bucket: Mapping[str, Tensor]) -> None:
                super().write({n: torch.zeros_like(t) for n, t in bucket.items()} if self.skip else bucket)

        return Sink(super().sink(offer))


@mutant("transport/disk", killers=("transport.release.gone", "transport.release.frees", "transport.machine"))
class ReleaseForgets(DiskTransport):
    """`release` forgets the version and leaves its files until the end."""

    def release(self, offer: Offer) -> None:
        """Do nothing."""


@mutant("transport/disk", killers=("transport.release.gone",))
class ReleasesOnce(DiskTransport):
    """A second `release` of one offer is an error."""

    def release(self, offer: Offer) -> None:
        if not Path(str(offer.location["folder"])).exists():
            raise WeightSyncError("there is no such offer")
        super().release(offer)


@mutant("transport/disk", killers=("transport.version.apart", "transport.release.reopened"))
class OnePlaceForAVersion(DiskTransport):
    """The place of a version follows from its number: opened again, it is the same one."""

    def open(self, version: int) -> Offer:
        offer = super().open(version)
        folder = Path(str(offer.location["folder"]))
        folder.rmdir()
        fixed = folder.parent / f"v{min(version, 7)}"
        fixed.mkdir(exist_ok=True)
        return attrs.evolve(offer, location={**offer.location, "folder": str(fixed)})


def _no_ticket(offer: Offer) -> Offer:
    return attrs.evolve(offer, location={**offer.location, "ticket": 1})


@mutant("transport/shm", killers=("transport.release.reopened", "transport.release.while_read"))
class OldNameNewBytes(ShmTransport):
    """Memory is used again and nothing tells the old offer of a version from the new one."""

    def open(self, version: int) -> Offer:
        offer = super().open(version)
        segment = self._segments.pop(int(offer.location["ticket"]))
        self._segments[1] = segment
        mark(segment.descriptor, version, 1)
        return _no_ticket(offer)


@mutant("transport/shm", killers=("transport.release.while_read",), row="update-chain")
class TornReading(ShmTransport):
    """A source does not look, in the end, whether the memory still holds what it began to read."""

    def source(self, offer: Offer) -> Any:
        class Source(PassingSource):
            def buckets(self) -> Iterator[Mapping[str, Tensor]]:
                names = 0
                for bucket in self.inner.buckets():
                    names += len(bucket)
                    yield bucket
                    if names == len(self.manifest.tensors):
                        return

        return Source(super().source(offer))


@mutant("transport/shm", killers=("transport.sink.late",))
class ReusesUnfinished(ShmTransport):
    """The memory of a version that was never finished is used again, though its writer may live."""

    def release(self, offer: Offer) -> None:
        segment = self._segments.get(int(offer.location["ticket"]))
        if segment is not None and self._spare is None:
            del self._segments[int(offer.location["ticket"])]
            mark(segment.descriptor, offer.version, 0)
            self._spare = segment
        else:
            super().release(offer)


@mutant("transport/shm", killers=("transport.sink.stale",))
class TrustsStaleOffers(ShmTransport):
    """A sink of a released offer writes wherever the memory is now."""

    def sink(self, offer: Offer) -> CheckedSink:
        sink = super().sink(offer)
        store = sink._store
        begin = store.begin

        def trusting(manifest: WeightManifest) -> None:
            kept = shm.__dict__["check_ticket"]
            shm.__dict__["check_ticket"] = lambda *_: None
            try:
                begin(manifest)
            finally:
                shm.__dict__["check_ticket"] = kept

        store.begin = trusting  # type: ignore[method-assign]
        return sink


@mutant("transport/disk", killers=("transport.offer.plain",))
class OfferHoldsAnObject(DiskTransport):
    """The offer's location holds a path object."""

    def open(self, version: int) -> Offer:
        offer = super().open(version)
        location: dict[str, Any] = {**offer.location, "folder": Path(str(offer.location["folder"]))}
        return attrs.evolve(offer, location=location)


@mutant("transport/disk", killers=("transport.offer.complete", "transport.finish.makes_readable"))
class RemembersRefusals(DiskTransport):
    """An end that asked for a version too early is told the same for ever."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.refused: set[str] = set()

    def source(self, offer: Offer) -> Any:
        folder = str(offer.location["folder"])
        try:
            if folder in self.refused:
                raise WeightSyncError("the version was not finished")
            return super().source(offer)
        except WeightSyncError:
            self.refused.add(folder)
            raise


@mutant("transport/disk", killers=("transport.abort.then_works",))
class AbortsForGood(DiskTransport):
    """An end on which one version was aborted sends no other."""

    spoiled = False

    def sink(self, offer: Offer) -> Any:
        if self.spoiled:
            raise WeightSyncError("an update was aborted here")
        outer = self

        class Sink(PassingSink):
            def abort(self) -> None:
                outer.spoiled = outer.spoiled or self.inner._open
                super().abort()

        return Sink(super().sink(offer))


@mutant("transport/disk", killers=("transport.process.controller", "transport.release.gone"))
class ReleasesOwnVersionsOnly(DiskTransport):
    """`release` frees what was sent from the same end, and nothing else."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.sent: set[str] = set()

    def sink(self, offer: Offer) -> Any:
        self.sent.add(str(offer.location["folder"]))
        return super().sink(offer)

    def release(self, offer: Offer) -> None:
        if str(offer.location["folder"]) in self.sent:
            super().release(offer)
