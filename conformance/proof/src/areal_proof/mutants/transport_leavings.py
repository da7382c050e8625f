"""Broken transports: something stays behind, or is open to others.

Knows: one defect a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.errors import StorageError, WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightManifest
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, row, then
from areal_proof.mutants.weight_parts import PassingSink, PassingSource
from areal_proof.second.transport import SecondTransport
from areal_proof.second.transport_server import Server

breaks = breaking("transport/disk", DiskTransport)
breaks_second = breaking("transport/second", SecondTransport)
breaks_shm = breaking("transport/shm", ShmTransport)


@breaks("close", "transport.close.clean")
def ClosesButOne(self: DiskTransport) -> None:
    """`close` leaves the folders of versions that were never released."""
    folder, self.folder = self.folder, None
    if folder is not None:
        os.close(folder.lock)
        folder.lock = -1


ROWS = breaks.rows(
    row("LeaksADescriptor", "A source opens its folder and never closes it.", "transport.version.many",
        row="flat-memory", source=then(lambda offer: os.open(str(offer.location["folder"]), os.O_RDONLY))),
    row("SinkLeavesAThread", "Every sink starts a thread that waits for work that never comes.",
        "transport.close.clean", row="flat-memory",
        sink=before(lambda: threading.Thread(target=threading.Event().wait, args=(600.0,), daemon=True).start())),
)  # fmt: skip


@breaks("close", "transport.close.clean", closed=False)
def TransportClosesOnce(original: Original, self: Any) -> None:
    """A second `close` raises."""
    if self.closed:
        raise WeightSyncError("the transport was closed already")
    self.closed = True
    original()


@mutant("transport/disk", killers=("transport.close.while_read",))
class ClosesWhenReadersAre(DiskTransport):
    """The controller's `close` leaves what somebody may still read."""

    def source(self, offer: Offer) -> Any:
        reading = Path(str(offer.location["folder"])).parent / ".reading"
        reading.touch()

        class Source(PassingSource):
            def close(self) -> None:
                reading.unlink(missing_ok=True)
                super().close()

        return Source(super().source(offer))

    def close(self) -> None:
        if self.folder is not None and (self.folder.path / ".reading").exists():
            os.close(self.folder.lock)
            self.folder = None
        super().close()


@breaks("release", "transport.release.frees", "transport.fault.no_room")
def KeepsThePieces(original: Original, offer: Offer) -> None:
    """The files of a version that was not finished are moved aside for inspection."""
    folder = Path(str(offer.location["folder"]))
    if folder.exists() and not (folder / "index.json").exists():
        kept = Path(tempfile.mkdtemp(dir=folder.parent, prefix="kept-"))
        for number in range(50_000 // 4096):
            (kept / str(number)).write_bytes(bytes(4096))
    original()


@breaks_shm("sink", "transport.room.refused")
def RoomShowsAsMemoryError(original: Original) -> Any:
    """Too little room shows as whatever the system raised."""

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            try:
                super().begin(manifest)
            except Exception as error:
                if type(error).__name__ == "ResourceError":
                    raise MemoryError(str(error)) from error
                raise

    return Sink(original())


@breaks("sink", "transport.fault.no_room")
def IgnoresFullDisks(original: Original, self: DiskTransport, offer: Offer) -> Any:
    """A write that failed for want of room is taken for done."""
    outer = self

    class Sink(PassingSink):
        def begin(self, manifest: WeightManifest) -> None:
            self.manifest = manifest
            super().begin(manifest)

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            try:
                super().write(bucket)
            except StorageError:
                specs = tuple(s for s in self.manifest.tensors if s.name not in bucket)
                self.inner = DiskTransport.sink(outer, offer)
                self.inner.begin(attrs.evolve(self.manifest, tensors=specs))
                for spec in specs:
                    self.inner.write({spec.name: _ones(spec)})

    return Sink(original())


def _ones(spec: Any) -> Tensor:
    import torch

    return torch.ones(spec.shape, dtype=getattr(torch, spec.dtype))


@mutant("transport/disk", killers=("transport.safe.unpickled", "transport.safe.bomb"))
class PickledManifest(DiskTransport):
    """The manifest is stored as a pickle, and unpickled by every receiver."""

    def sink(self, offer: Offer) -> Any:
        stored = Path(str(offer.location["folder"])) / "manifest.bin"

        class Sink(PassingSink):
            def begin(self, manifest: WeightManifest) -> None:
                super().begin(manifest)
                self.manifest = manifest

            def finish(self) -> Receipt:
                stored.write_bytes(pickle.dumps(self.manifest))
                return super().finish()

        return Sink(super().sink(offer))

    def source(self, offer: Offer) -> Any:
        source = super().source(offer)
        try:
            pickle.loads((Path(str(offer.location["folder"])) / "manifest.bin").read_bytes())
        except Exception as error:
            raise WeightSyncError("the manifest cannot be read", why=str(error)) from error
        return source


@breaks("open", "transport.safe.private")
def WeightsOpenToAll(original: Original) -> Any:
    """The folder of the weights can be read by every user of the machine."""
    offer = original()
    folder = Path(str(offer.location["folder"]))
    for path in (folder, folder.parent):
        path.chmod(0o755)
    return offer


@breaks_second("open", "transport.safe.loopback")
def WeightsListenEverywhere(original: Original, self: SecondTransport) -> Any:
    """The server of the weights listens at every address of the machine."""
    if self.server is None:
        self.server = _WideServer()
    offer = original()
    return attrs.evolve(offer, location={**offer.location, "address": "127.0.0.1"})


class _WideServer(Server):
    host = "0.0.0.0"


SECOND_ROWS = breaks_second.rows(
    row("WeightsWithoutAKey", "The server of the weights answers whoever connects.", "transport.safe.stranger",
        open=before(lambda self: setattr(self, "server", _TrustingServer()) if self.server is None else None)),
)  # fmt: skip


class _TrustingServer(Server):
    def admits(self, connection: socket.socket, file: Any) -> bool:
        super().admits(connection, file)
        return True


@mutant("transport/disk", killers=("transport.fault.flip",))
class ReadsFromItsOwnMemory(DiskTransport):
    """A receiver in the sender's process is given the sender's tensors, not what was stored."""

    def sink(self, offer: Offer) -> Any:
        kept = _KEPT.setdefault(str(offer.location["folder"]), {})

        class Sink(PassingSink):
            def write(self, bucket: Mapping[str, Tensor]) -> None:
                super().write(bucket)
                kept.update({name: tensor.detach().clone() for name, tensor in bucket.items()})

        return Sink(super().sink(offer))

    def source(self, offer: Offer) -> Any:
        kept = _KEPT.get(str(offer.location["folder"]), {})

        class Source(PassingSource):
            def alter(self, name: str, tensor: Tensor) -> Tensor:
                return kept.get(name, tensor)

        return Source(super().source(offer))


_KEPT: dict[str, dict[str, Tensor]] = {}


@breaks("source", "transport.fault.anywhere")
def BreaksOnBadFiles(original: Original, offer: Offer) -> Any:
    """A spoiled index shows as whatever the parser raised."""
    import json

    index = Path(str(offer.location["folder"])) / "index.json"
    if index.exists():
        json.loads(index.read_bytes().decode())
    return original()


@breaks("source", "transport.fault.truncated", row="update-chain")
def SkipsWhatItCannotRead(original: Original) -> Any:
    """A bucket that cannot be read is left out."""
    source = original()
    read = source.read

    def lenient(file: str, names: list[str]) -> Any:
        try:
            return read(file, names)
        except WeightSyncError:
            return {}

    source.read = lenient

    class Source(PassingSource):
        def buckets(self) -> Iterator[Mapping[str, Tensor]]:
            try:
                yield from (bucket for bucket in self.inner.buckets() if bucket)
            except WeightSyncError:
                return

    return Source(source)


@breaks("source", "transport.fault.receiver_killed", row="dead-peer",
        release=before(lambda offer: WeightSyncError("the version is being read")
            if list(Path(str(offer.location["folder"])).parent.glob(".reading-*")) else None))  # fmt: skip
def ReadersHoldTheVersion(original: Original, offer: Offer) -> Any:
    """A version is not deleted as long as a reader has not said that it is done."""
    mark = Path(str(offer.location["folder"])).parent / f".reading-{os.getpid()}"
    inner = original()
    mark.touch()

    class Source(PassingSource):
        def close(self) -> None:
            mark.unlink(missing_ok=True)
            super().close()

    return Source(inner)


@mutant("transport/disk", killers=("transport.fault.controller_killed",))
class NobodySweeps(DiskTransport):
    """What a killed controller left lies there for ever."""

    def open(self, version: int) -> Offer:
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=self.config.root or None))
        self._own = [*getattr(self, "_own", []), folder]
        location: dict[str, str | int] = {"folder": str(folder), "bucket_bytes": self.config.bucket_bytes, "fsync": 0}
        return Offer(transport="disk", version=version, location=location)

    def close(self) -> None:
        for folder in getattr(self, "_own", []):
            shutil.rmtree(folder, ignore_errors=True)
