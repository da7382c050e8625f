"""Transports that serve their readers badly, keep what was given up, or do not hear that another has left.

Knows: how each goes wrong.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, WeightManifest
from areal_core.weights.tensors import fingerprint
from areal_local.transports import collective
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.collective_source import CollectiveSource, GroupCache
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import Mapped, ShmTransport
from areal_local.transports.sink import CheckedSink
from areal_proof.mutants.rows import Original, after, before, breaking, catches, gives, row, subclass, then
from areal_proof.mutants.weight_parts import PassingSink, PassingSource, breaking_ends, folder_of
from areal_torch.collective.group import BroadcastGroup
from areal_torch.collective.rendezvous import Rendezvous

breaks = breaking("transport/disk", DiskTransport)
breaks_ends, breaks_sink, breaks_source = breaking_ends("transport/disk", DiskTransport)
_, _, breaks_shm_source = breaking_ends("transport/shm", ShmTransport)


@breaks("source", "transport.version.offered", row="update-chain")
def AnyVersionWillDo(original: Original, offer: Offer) -> Any:
    """What lies at the offer's place is read, whichever version it is."""
    index = folder_of(offer) / "index.json"
    found = json.loads(index.read_text())["version"] if index.exists() else offer.version
    return original(attrs.evolve(offer, version=found))


@breaks_source("buckets", "transport.version.follow", row="served-policy-changes")
def RemembersTheFirst(original: Original, self: PassingSource) -> Any:
    """A receiver that has read tensors of these names once yields those again, update after update."""
    known, key = vars(self.transport).setdefault("known", {}), tuple(self.manifest.tensors)
    if key not in known:
        known[key] = [{name: tensor.clone() for name, tensor in bucket.items()} for bucket in original()]
    yield from known[key]


@breaks_source("buckets", "transport.source.many")
def OneReader(original: Original, self: PassingSource) -> Any:
    """A bucket is deleted once a receiver has read it."""
    for bucket in original():
        yield {name: tensor.clone() for name, tensor in bucket.items()}
    for file in folder_of(self.offer).glob("*.safetensors"):
        file.unlink()


SHM_SOURCE_ROWS = breaks_shm_source.rows(
    row("OneBufferForAll",
        "Every source of one process yields views of the same buffer, overwritten by whoever reads next.",
        "transport.source.many",
        alter=lambda self, tensor: vars(self.transport).setdefault("buffers", {}).setdefault(
            (tensor.dtype, tuple(tensor.shape)), tensor.clone()).copy_(tensor)),
)  # fmt: skip


@breaks_source("__init__", "transport.source.at_once",
    close=before(lambda self: (folder_of(self.offer) / "busy").unlink(missing_ok=True)))  # fmt: skip
def SecondReaderWaits(original: Original, offer: Offer) -> None:
    """Who opens a source while another reads is turned away."""
    try:
        (folder_of(offer) / "busy").touch(exist_ok=False)
    except FileExistsError as error:
        raise WeightSyncError("somebody else reads this version") from error
    threading.Event().wait(0.2)
    original()


@breaks("source", "transport.process.ends")
def EndOfAProcessTakesAll(original: Original, offer: Any) -> Any:
    """Deletes what a process read when the process ends, though the controller lives."""
    atexit.register(shutil.rmtree, folder_of(offer), ignore_errors=True)
    return original()


@breaks("close", "transport.source.left", "transport.process.receivers", reads=None,
        source=then(lambda self, offer: setattr(self, "reads", folder_of(offer))))  # fmt: skip
def LastOneOutTakesAll(original: Original, self: Any) -> None:
    """A receiver that closes its end deletes the version it read."""
    if self.reads is not None:
        for file in self.reads.glob("*"):
            file.unlink()
    original()


_FINISHED: set[Path] = set()
"""Known in one process only, which is the defect."""


_NEWEST: list[str] = [""]


ENDS_ROWS = breaks_ends.rows(
    row("KnownHereOnly", "Which versions are finished is known only in the process that sent them.",
        "transport.process.crosses",
        Sink=subclass("Telling", PassingSink, {"finish": then(lambda self: _FINISHED.add(folder_of(self.offer)))}),
        source=before(lambda offer: None if folder_of(offer) in _FINISHED
            else WeightSyncError("nobody told where the version is"))),
    row("AbortAfterwardsHurts", "`abort` of a sink long ended drops whatever its transport opened last.",
        "transport.release.again", open=then(lambda result: _NEWEST.append(str(folder_of(result)))),
        Sink=subclass("Hurting", PassingSink, {"ended": False,
            "abort": before(lambda self: shutil.rmtree(_NEWEST[-1], ignore_errors=True) if self.ended
                else setattr(self, "ended", True))})),
)  # fmt: skip


SINK_ROWS = breaks_sink.rows(
    row("AbortWaitsForRelease", "`abort` makes a version unreadable and leaves its files to `release`.",
        "transport.abort.frees", row="flat-memory", abort=lambda self: setattr(self.inner, "is_open", False)),
)  # fmt: skip


breaks_given_up = breaking("transport/shm", ShmTransport)


class _Private(Mapped):
    def map(self, offer: Offer, size: int) -> mmap.mmap:
        """Return a private view that can be written to, always the same one."""
        if self.mapping is None:
            with Path(str(offer.location["path"])).open("rb") as file:
                self.mapping = mmap.mmap(
                    file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
        return self.mapping


ROWS = breaks_given_up.rows(
    row("ReadersMayWrite", "Readers map the segment as the sender does: what one writes, all read.",
        "transport.reader.writes", row="one-destination",
        __init__=then(lambda self: setattr(self, "reading", Mapped(writable=True)))),
    row("ReaderKeepsItsOwnWriting",
        "What a reader wrote into its view it reads there again, in place of later versions.",
        "transport.reader.writes", row="one-destination",
        __init__=then(lambda self: setattr(self, "reading", _Private(writable=False)))),
)  # fmt: skip


@breaks("release", "transport.release.again")
def ReleasedForGood(offer: Offer) -> None:
    """An offer that was released already cannot be released."""
    try:
        shutil.rmtree(str(offer.location["folder"]))
    except OSError as error:
        raise WeightSyncError("the offer was released before") from error


breaks_streams = breaking("transport/collective", CollectiveTransport)
_, _, breaks_streams_source = breaking_ends("transport/collective", CollectiveTransport)


@breaks_streams("source", "transport.stream.sender_stops")
def DoneWithTheLastByte(self: CollectiveTransport, offer: Offer) -> Any:
    """A receiver that has every byte takes them for a version, though the sender has not finished."""

    class Source(CollectiveSource):
        def wait_finished(self) -> None:
            self.done = True

    return Source(Rendezvous(offer, self.connections), offer, self.cache)


@breaks_streams_source("buckets", "transport.stream.sender_killed", "transport.stream.sender_stops")
def EndsQuietly(original: Original, self: PassingSource) -> Any:
    """A receiver whose sender is gone ends as if that had been all."""
    _ = self.manifest
    try:
        yield from original()
    except WeightSyncError:
        return


@breaks_streams_source("buckets", "transport.stream.receiver_leaves")
def LoopsCannotBeBrokenOff(original: Original) -> Any:
    """Looks for the words of whatever ends a loop over the buckets, and raises where it has none."""
    try:
        yield from original()
    except GeneratorExit as error:
        assert str(error).splitlines()[0]
        raise


@breaks_streams("expect", "transport.stream.alone", "transport.stream.receiver_killed")
def NamesNobody(original: Original, offer: Offer, receivers: Sequence[str]) -> Any:
    """Errors speak of a receiver by number, not by the name it has in the run."""
    anonymous = [f"#{number}" for number, _ in enumerate(receivers)] if len(set(receivers)) > 1 else receivers
    return original(offer, ["#0"] if len(receivers) == 1 else anonymous)


class _Deaf(collective.Broadcaster):
    def begin(self, manifest: WeightManifest) -> None:
        try:
            super().begin(manifest)
        except WeightSyncError:
            self.group = None

    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, str]:
        try:
            return super().write(bucket)
        except (WeightSyncError, AssertionError):
            return {name: fingerprint(tensor) for name, tensor in bucket.items()}

    def seal(self) -> None:
        try:
            super().seal()
        except (WeightSyncError, AssertionError):
            return


class _Hoard(GroupCache):
    def __init__(self) -> None:
        super().__init__()
        self.groups: list[BroadcastGroup] = []

    def keep(self, group: BroadcastGroup) -> None:
        self.groups.append(group)


STREAMS_ROWS = breaks_streams.rows(
    row("ReleasesInSilence", "`release` tells nobody: who waits, waits until its own timeout.",
        "transport.stream.released", release=lambda: None),
    row("BlamesNobody", "Tells who took part in a transfer that broke, and not who left.",
        "transport.stream.receiver_leaves",
        sink=then(lambda result: setattr(result.store._rendezvous, "blame", lambda names: ""))),
    row("WaitsForEver", "An end waits ten minutes for the others, whatever it was told.", "transport.stream.alone",
        row="dead-peer", open=gives(location=lambda result: {**result.location, "timeout_ms": 600000})),
    row("ExpectsAnything", "Takes a fleet of nobody, and one receiver for two.", "transport.stream.named",
        expect=lambda original, offer, receivers: () if not receivers else original(offer,
            tuple(dict.fromkeys(receivers)))),
    row("OneSeatForAll", "Every receiver is given the first one's offer.", "transport.stream.everybody",
        "transport.stream.named", expect=after(lambda result: (result[0],) * len(result))),
    row("SendsIntoTheVoid", "A sender whose receivers are gone goes on, and finishes.",
        "transport.stream.receiver_leaves", "transport.stream.receiver_killed",
        sink=lambda self, offer: CheckedSink(_Deaf(Rendezvous(offer, self.connections), offer, self.cache),
            version=offer.version, bucket_bytes=1000)),
    row("KeepsEveryGroup", "Every version has a group of its own, and none is left again.", "transport.stream.clean",
        __init__=then(lambda self: setattr(self, "cache", _Hoard()))),
    row("OneProcessOnly", "Ends meet only in the controller's own process.", "transport.stream.crosses",
        open=gives(location=lambda result: {**result.location, "pid": os.getpid()}),
        sink=before(lambda offer: WeightSyncError("the sender is in another process")
            if offer.location["pid"] != os.getpid() else None)),
    row("ForeignErrors", "What the socket raises reaches the engine as it is.", "transport.stream.controller_killed",
        source=catches(WeightSyncError, lambda error: ConnectionError(error.what))),
)  # fmt: skip
