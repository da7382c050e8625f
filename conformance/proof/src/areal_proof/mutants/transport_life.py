"""Broken transports: offers that can be read too early, too late or instead of another.

Knows: one defect a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import attrs
import torch

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, WeightManifest
from areal_local.transports import shm
from areal_local.transports.disk import DiskTransport
from areal_local.transports.layout import is_readable, mark
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants.rows import Original, before, breaking, gives, on, put, row, then, within
from areal_proof.mutants.weight_parts import PassingSource, breaking_ends, folder_of
from areal_proof.second.transport import SecondTransport
from areal_proof.second.transport_server import Server

breaks = breaking("transport/disk", DiskTransport)
_, breaks_sink, _ = breaking_ends("transport/disk", DiskTransport)
breaks_shm = breaking("transport/shm", ShmTransport)
_, breaks_shm_sink, breaks_shm_source = breaking_ends("transport/shm", ShmTransport)
breaks_second = breaking("transport/second", SecondTransport)


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


SINK_ROWS = breaks_sink.rows(
    row("ReadableWhenWritten", "The version can be read as soon as the last byte is written, before `finish`.",
        "transport.finish.makes_readable", "transport.machine",
        write=then(lambda self: self.inner.store.seal() if self.complete else None)),
    row("WritesAfterFinish", "A write that comes after `finish` begins the version anew.", "transport.finish.once",
        write=before(lambda self: None if self.inner.is_open else self.anew(self.manifest))),
    row("AbortKeepsWhatItHas", "An aborted version that was wholly written can be read.",
        "transport.abort.unreadable", row="update-chain",
        abort=before(lambda self: self.inner.finish() if self.complete and self.inner.is_open else None)),
    row("AbortsForGood", "An end on which one version was aborted sends no other.", "transport.abort.then_works",
        __init__=before(lambda transport: WeightSyncError("an update was aborted here") if hasattr(transport, "spoiled")
            else None),
        abort=before(lambda self: setattr(self.transport, "spoiled", True) if self.inner.is_open else None)),
)  # fmt: skip


SHM_SINK_ROWS = breaks_shm_sink.rows(
    row("TrustsStaleOffers", "A sink of a released offer writes wherever the memory is now.", "transport.sink.stale",
        begin=within(lambda: put(shm, check_ticket=lambda *_: None))),
)  # fmt: skip


@breaks_shm_sink("begin", "transport.version.follow", skip=False,
    write=lambda original, self, bucket: original({n: torch.zeros_like(t) for n, t in bucket.items()} if self.skip
        else bucket))  # fmt: skip
def KeepsWhatLooksAlike(original: Original, self: Any, manifest: WeightManifest) -> None:
    """A version whose tensors are named and sized like those of the one before is cleared and not written again."""
    names, known = tuple(manifest.tensors), vars(self.transport)
    self.skip = known.get("seen") == names
    known["seen"] = names
    original()


@breaks("open", "transport.version.apart", "transport.release.reopened")
def OnePlaceForAVersion(original: Original, version: int) -> Any:
    """The place of a version follows from its number: opened again, it is the same one."""
    offer = original()
    folder = folder_of(offer)
    folder.rmdir()
    fixed = folder.parent / f"v{min(version, 7)}"
    fixed.mkdir(exist_ok=True)
    return attrs.evolve(offer, location={**offer.location, "folder": str(fixed)})


@breaks_shm("open", "transport.release.reopened", "transport.release.while_read")
def OldNameNewBytes(original: Original, self: ShmTransport, version: int) -> Any:
    """Memory is used again and nothing tells the old offer of a version from the new one."""
    offer = original()
    segment = self.segments.pop(int(offer.location["ticket"]))
    self.segments[1] = segment
    mark(segment.descriptor, version, 1)
    return attrs.evolve(offer, location={**offer.location, "ticket": 1})


@breaks_shm_source("buckets", "transport.release.while_read", row="update-chain")
def TornReading(self: PassingSource) -> Any:
    """A source does not look, in the end, whether the memory still holds what it began to read."""
    names = 0
    for bucket in self.inner.buckets():
        names += len(bucket)
        yield bucket
        if names == len(self.manifest.tensors):
            return


@breaks_shm_source("buckets", "transport.release.while_read")
def LooksBeforeEachBucket(self: PassingSource) -> Any:
    """A source looks before each bucket whether its version is still there, and not behind the last one."""
    names, source = 0, self.inner
    for bucket in source.buckets():
        if not is_readable(source._map, source._offer.version, int(source._offer.location["ticket"])):
            raise WeightSyncError(f"version {source._offer.version} is gone")
        names += len(bucket)
        yield bucket
        if names == len(self.manifest.tensors):
            return


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


ROWS = breaks.rows(
    row("ReleaseForgets", "`release` forgets the version and leaves its files until the end.",
        "transport.release.gone", "transport.release.frees", "transport.machine", release=lambda: None),
    row("ReleasesOnce", "A second `release` of one offer is an error.", "transport.release.gone",
        release=before(lambda offer: None if folder_of(offer).exists() else WeightSyncError("there is no such offer"))),
    row("ReleasesOwnVersionsOnly", "`release` frees what was sent from the same end, and nothing else.",
        "transport.process.controller", "transport.release.gone",
        __init__=then(lambda self: setattr(self, "sent", set())),
        sink=before(lambda self, offer: self.sent.add(str(folder_of(offer)))),
        release=lambda original, self, offer: original() if str(folder_of(offer)) in self.sent else None),
    row("OfferHoldsAnObject", "The offer's location holds a path object.", "transport.offer.plain",
        open=gives(location=lambda result: {**result.location, "folder": folder_of(result)})),
    row("WaitsForTheSender", "A source of what was never finished waits for it, without an end.",
        "transport.finish.makes_readable", row="dead-peer",
        source=on(WeightSyncError, lambda: threading.Event().wait(40.0))),
)  # fmt: skip


@breaks("source", "transport.offer.complete", "transport.finish.makes_readable")
def RemembersRefusals(original: Original, self: DiskTransport, offer: Offer) -> Any:
    """An end that asked for a version too early is told the same for ever."""
    refused = vars(self).setdefault("refused", set())
    try:
        if folder_of(offer) in refused:
            raise WeightSyncError("the version was not finished")
        return original()
    except WeightSyncError:
        refused.add(folder_of(offer))
        raise
