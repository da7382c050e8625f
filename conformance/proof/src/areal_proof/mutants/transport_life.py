"""Broken transports: offers that can be read too early, too late or instead of another.

Knows: one defect a class.
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
from areal_local.transports import shm
from areal_local.transports.disk import DiskTransport
from areal_local.transports.layout import mark
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, gives, on, row
from areal_proof.mutants.weight_parts import PassingSink, PassingSource
from areal_proof.second.transport import SecondTransport
from areal_proof.second.transport_server import Server

breaks = breaking("transport/disk", DiskTransport)
breaks_shm = breaking("transport/shm", ShmTransport)
breaks_second = breaking("transport/second", SecondTransport)


class _PatientSink(PassingSink):
    """Knows the folder of its version."""

    def __init__(self, inner: Any, offer: Offer) -> None:  # Any: the transport's own class
        super().__init__(inner)
        self.folder = Path(str(offer.location["folder"]))


@breaks("sink", "transport.finish.makes_readable", "transport.machine")
def ReadableWhenWritten(original: Original) -> Any:
    """The version can be read as soon as the last byte is written, before `finish`."""

    class Sink(PassingSink):
        def write(self, bucket: Mapping[str, Tensor]) -> None:
            super().write(bucket)
            if len(self.inner.coverage._fingerprints) == len(self.inner.coverage._specs):
                self.inner.store.seal()

    return Sink(original())


SECOND_ROWS = breaks_second.rows(
    row("ReadableFromTheStart", "What was announced can be read; what has not come yet is zeros.",
        "transport.fault.sender_killed", "transport.finish.makes_readable",
        open=before(lambda self: setattr(self, "server", _HastyServer()) if self.server is None else None)),
)  # fmt: skip


class _HastyServer(Server):
    def do_manifest(self, me: int, shelf: Any, request: Any, payload: Any) -> Any:
        for name, shape, dtype in shelf.announced:
            shelf.data.setdefault(name, bytearray(math.prod(shape) * getattr(torch, dtype).itemsize))
        return {"tensors": shelf.announced, "tied": shelf.tied}, b""

    def clear(self, me: int, shelf: Any) -> None:
        """Keep it."""


@breaks("sink", "transport.finish.once")
def WritesAfterFinish(original: Original, self: DiskTransport, offer: Offer) -> Any:
    """A write that comes after `finish` begins the version anew."""
    outer = self

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            self.manifest = manifest
            super().begin(manifest)

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            if not self.inner.is_open:
                self.inner = DiskTransport.sink(outer, offer)
                self.inner.begin(self.manifest)
            super().write(bucket)

    return Sink(original())


@breaks("sink", "transport.abort.unreadable", row="update-chain")
def AbortKeepsWhatItHas(original: Original) -> Any:
    """An aborted version that was wholly written can be read."""

    class Sink(PassingSink):
        def abort(self) -> None:
            coverage = self.inner.coverage
            if coverage is not None and len(coverage._fingerprints) == len(coverage._specs) and self.inner.is_open:
                self.inner.finish()
            self.inner.abort()

    return Sink(original())


@breaks_shm("sink", "transport.version.follow", seen=None)
def KeepsWhatLooksAlike(original: Original, self: Any) -> Any:
    """A version whose tensors are named and sized like those of the one before is cleared and not written again."""
    outer = self

    class Sink(PassingSink):
        skip = False

        def begin(self, manifest: WeightManifest) -> None:
            names = tuple(manifest.tensors)
            self.skip, outer.seen = outer.seen == names, names
            super().begin(manifest)

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            super().write({n: torch.zeros_like(t) for n, t in bucket.items()} if self.skip else bucket)

    return Sink(original())


@mutant("transport/disk", killers=("transport.release.gone", "transport.release.frees", "transport.machine"))
class ReleaseForgets(DiskTransport):
    """`release` forgets the version and leaves its files until the end."""

    def release(self, offer: Offer) -> None:
        """Do nothing."""


@breaks("open", "transport.version.apart", "transport.release.reopened")
def OnePlaceForAVersion(original: Original, version: int) -> Any:
    """The place of a version follows from its number: opened again, it is the same one."""
    offer = original()
    folder = Path(str(offer.location["folder"]))
    folder.rmdir()
    fixed = folder.parent / f"v{min(version, 7)}"
    fixed.mkdir(exist_ok=True)
    return attrs.evolve(offer, location={**offer.location, "folder": str(fixed)})


def _no_ticket(offer: Offer) -> Offer:
    return attrs.evolve(offer, location={**offer.location, "ticket": 1})


@breaks_shm("open", "transport.release.reopened", "transport.release.while_read")
def OldNameNewBytes(original: Original, self: ShmTransport, version: int) -> Any:
    """Memory is used again and nothing tells the old offer of a version from the new one."""
    offer = original()
    segment = self.segments.pop(int(offer.location["ticket"]))
    self.segments[1] = segment
    mark(segment.descriptor, version, 1)
    return _no_ticket(offer)


@breaks_shm("source", "transport.release.while_read", row="update-chain")
def TornReading(original: Original) -> Any:
    """A source does not look, in the end, whether the memory still holds what it began to read."""

    class Source(PassingSource):
        def buckets(self) -> Iterator[Mapping[str, Tensor]]:
            names = 0
            for bucket in self.inner.buckets():
                names += len(bucket)
                yield bucket
                if names == len(self.manifest.tensors):
                    return

    return Source(original())


@breaks_shm("release", "transport.sink.late")
def ReusesUnfinished(original: Original, self: ShmTransport, offer: Offer) -> None:
    """The memory of a version that was never finished is used again, though its writer may live."""
    segment = self.segments.get(int(offer.location["ticket"]))
    if segment is not None and self.spare is None:
        del self.segments[int(offer.location["ticket"])]
        mark(segment.descriptor, offer.version, 0)
        self.spare = segment
    else:
        original()


@breaks_shm("sink", "transport.sink.stale")
def TrustsStaleOffers(original: Original) -> Any:
    """A sink of a released offer writes wherever the memory is now."""
    sink = original()
    store = sink.store
    begin = store.begin

    def trusting(manifest: WeightManifest) -> None:
        kept = shm.__dict__["check_ticket"]
        shm.__dict__["check_ticket"] = lambda *_: None
        try:
            begin(manifest)
        finally:
            shm.__dict__["check_ticket"] = kept

    store.begin = trusting
    return sink


ROWS = breaks.rows(
    row("ReleasesOnce", "A second `release` of one offer is an error.", "transport.release.gone",
        release=before(lambda offer: WeightSyncError("there is no such offer")
            if not Path(str(offer.location["folder"])).exists() else None)),
    row("OfferHoldsAnObject", "The offer's location holds a path object.", "transport.offer.plain",
        open=gives(location=lambda result: {**result.location, "folder": Path(str(result.location["folder"]))})),
    row("WaitsForTheSender", "A source of what was never finished waits for it, without an end.",
        "transport.finish.makes_readable", row="dead-peer",
        source=on(WeightSyncError, lambda: threading.Event().wait(40.0))),
)  # fmt: skip


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


@breaks("sink", "transport.abort.then_works", spoiled=False)
def AbortsForGood(original: Original, self: Any) -> Any:
    """An end on which one version was aborted sends no other."""
    if self.spoiled:
        raise WeightSyncError("an update was aborted here")
    outer = self

    class Sink(PassingSink):
        def abort(self) -> None:
            outer.spoiled = outer.spoiled or self.inner.is_open
            super().abort()

    return Sink(original())


@breaks("__init__", "transport.process.controller", "transport.release.gone",
        sink=before(lambda self, offer: self.sent.add(str(offer.location["folder"]))),
        release=lambda original, self, offer: original()
            if str(offer.location["folder"]) in self.sent else None)  # fmt: skip
def ReleasesOwnVersionsOnly(original: Original, self: Any) -> None:
    """`release` frees what was sent from the same end, and nothing else."""
    original()
    self.sent = set()
