"""Transports that serve their readers badly, keep what was given up, or do not hear that another has left.

Knows: how each goes wrong.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightManifest
from areal_local.transports import collective
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.collective_source import CollectiveSource, GroupCache
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import Mapped, ShmTransport
from areal_local.transports.sink import CheckedSink
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, gives, row, then
from areal_proof.mutants.weight_parts import PassingSink, PassingSource
from areal_torch.collective.group import BroadcastGroup
from areal_torch.collective.rendezvous import Rendezvous

breaks = breaking("transport/disk", DiskTransport)


@breaks("source", "transport.version.offered", row="update-chain")
def AnyVersionWillDo(original: Original, offer: Offer) -> Any:
    """What lies at the offer's place is read, whichever version it is."""
    index = Path(str(offer.location["folder"])) / "index.json"
    found = json.loads(index.read_text())["version"] if index.exists() else offer.version
    return original(attrs.evolve(offer, version=found))


@mutant("transport/disk", killers=("transport.version.follow",), row="served-policy-changes")
class RemembersTheFirst(DiskTransport):
    """A receiver that has read tensors of these names once yields those again, update after update."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.known: dict[tuple[Any, ...], list[dict[str, Tensor]]] = {}

    def source(self, offer: Offer) -> Any:
        known = self.known

        class Source(PassingSource):
            def buckets(self) -> Iterator[Mapping[str, Tensor]]:
                key = tuple(self.manifest.tensors)
                if key not in known:
                    known[key] = [{n: t.clone() for n, t in bucket.items()} for bucket in self.inner.buckets()]
                yield from known[key]

        return Source(super().source(offer))


@breaks("source", "transport.source.many")
def OneReader(original: Original, offer: Offer) -> Any:
    """A bucket is deleted once a receiver has read it."""
    folder = Path(str(offer.location["folder"]))

    class Source(PassingSource):
        def buckets(self) -> Iterator[Mapping[str, Tensor]]:
            for bucket in super().buckets():
                yield {name: tensor.clone() for name, tensor in bucket.items()}
            for file in folder.glob("*.safetensors"):
                file.unlink()

    return Source(original())


@mutant("transport/shm", killers=("transport.source.many",))
class OneBufferForAll(ShmTransport):
    """Every source of one process yields views of the same buffer, overwritten by whoever reads next."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.buffers: dict[tuple[Any, ...], Tensor] = {}

    def source(self, offer: Offer) -> Any:
        buffers = self.buffers

        class Source(PassingSource):
            def alter(self, name: str, tensor: Tensor) -> Tensor:
                key = (tensor.dtype, tuple(tensor.shape))
                return buffers.setdefault(key, tensor.clone()).copy_(tensor)

        return Source(super().source(offer))


@breaks("source", "transport.source.at_once")
def SecondReaderWaits(original: Original, offer: Offer) -> Any:
    """Who opens a source while another reads is turned away."""
    busy = Path(str(offer.location["folder"])) / "busy"
    inner = original()
    try:
        busy.touch(exist_ok=False)
    except FileExistsError as error:
        raise WeightSyncError("somebody else reads this version") from error
    threading.Event().wait(0.2)

    class Source(PassingSource):
        def close(self) -> None:
            busy.unlink(missing_ok=True)
            super().close()

    return Source(inner)


@breaks("close", "transport.source.left", "transport.process.receivers", reads=None,
        source=then(lambda self, offer: setattr(self, "reads", Path(str(offer.location["folder"])))))  # fmt: skip
def LastOneOutTakesAll(original: Original, self: Any) -> None:
    """A receiver that closes its end deletes the version it read."""
    if self.reads is not None:
        for file in self.reads.glob("*"):
            file.unlink()
    original()


_PLACES: dict[str, str] = {}
"""Known in one process only, which is the defect."""


@breaks("sink", "transport.process.crosses",
        source=before(lambda offer: WeightSyncError("nobody told where the version is")
            if str(offer.location["folder"]) not in _PLACES else None))  # fmt: skip
def KnownHereOnly(original: Original, offer: Offer) -> Any:
    """Which versions are finished is known only in the process that sent them."""

    class Sink(PassingSink):
        def finish(self) -> Receipt:
            receipt = super().finish()
            _PLACES[str(offer.location["folder"])] = "here"
            return receipt

    return Sink(original())


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


@breaks("sink", "transport.abort.frees", row="flat-memory")
def AbortWaitsForRelease(original: Original) -> Any:
    """`abort` makes a version unreadable and leaves its files to `release`."""

    class Sink(PassingSink):
        def abort(self) -> None:
            self.inner.is_open = False

    return Sink(original())


@breaks("release", "transport.release.again")
def ReleasedForGood(offer: Offer) -> None:
    """An offer that was released already cannot be released."""
    try:
        shutil.rmtree(str(offer.location["folder"]))
    except OSError as error:
        raise WeightSyncError("the offer was released before") from error


@mutant("transport/disk", killers=("transport.release.again",))
class AbortAfterwardsHurts(DiskTransport):
    """`abort` of a sink long ended drops whatever its transport opened last."""

    newest: ClassVar[str] = ""

    def open(self, version: int) -> Offer:
        offer = super().open(version)
        AbortAfterwardsHurts.newest = str(offer.location["folder"])
        return offer

    def sink(self, offer: Offer) -> Any:
        class Sink(PassingSink):
            ended = False

            def abort(self) -> None:
                if self.ended:
                    shutil.rmtree(AbortAfterwardsHurts.newest, ignore_errors=True)
                self.ended = True
                super().abort()

        return Sink(super().sink(offer))


breaks_streams = breaking("transport/collective", CollectiveTransport)


@breaks_streams("source", "transport.stream.sender_stops")
def DoneWithTheLastByte(self: CollectiveTransport, offer: Offer) -> Any:
    """A receiver that has every byte takes them for a version, though the sender has not finished."""

    class Source(CollectiveSource):
        def wait_finished(self) -> None:
            self.done = True

    return Source(Rendezvous(offer, self.connections), offer, self.cache)


@breaks_streams("source", "transport.stream.sender_killed", "transport.stream.sender_stops")
def EndsQuietly(original: Original) -> Any:
    """A receiver whose sender is gone ends as if that had been all."""

    class Source(PassingSource):
        def buckets(self) -> Iterator[Mapping[str, Tensor]]:
            _ = self.manifest
            try:
                yield from super().buckets()
            except WeightSyncError:
                return

    return Source(original())


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
            self._group = None

    def write(self, bucket: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        try:
            return super().write(bucket)
        except (WeightSyncError, AssertionError):
            return {name: tensor.detach().cpu().contiguous() for name, tensor in bucket.items()}

    def seal(self) -> None:
        try:
            super().seal()
        except (WeightSyncError, AssertionError):
            return


@mutant("transport/collective", killers=("transport.stream.released",))
class ReleasesInSilence(CollectiveTransport):
    """`release` tells nobody: who waits, waits until its own timeout."""

    def release(self, offer: Offer) -> None:
        """Leave the rendezvous as it is; `close` takes all of them."""


class _Hoard(GroupCache):
    def __init__(self) -> None:
        super().__init__()
        self.groups: list[BroadcastGroup] = []

    def keep(self, group: BroadcastGroup) -> None:
        self.groups.append(group)


STREAMS_ROWS = breaks_streams.rows(
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
