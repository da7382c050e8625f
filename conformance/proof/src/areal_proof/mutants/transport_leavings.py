"""Broken transports: something stays behind, or is open to others.

Knows: one defect a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import ResourceError, StorageError, WeightSyncError
from areal_core.contract.weights import Offer
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, row, subclass, then
from areal_proof.mutants.weight_parts import PassingSink, PassingSource, breaking_ends, folder_of
from areal_proof.second.transport import SecondTransport
from areal_proof.second.transport_server import Server

breaks = breaking("transport/disk", DiskTransport)
breaks_second = breaking("transport/second", SecondTransport)
breaks_ends, breaks_sink, breaks_source = breaking_ends("transport/disk", DiskTransport)
_, breaks_shm_sink, _ = breaking_ends("transport/shm", ShmTransport)


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
    row("TransportClosesOnce", "A second `close` raises.", "transport.close.clean", closed=False,
        close=before(lambda self: WeightSyncError("the transport was closed already") if self.closed
            else setattr(self, "closed", True))),
    row("BreaksOnBadFiles", "A spoiled index shows as whatever the parser raised.", "transport.fault.anywhere",
        source=before(lambda offer: json.loads((folder_of(offer) / "index.json").read_bytes().decode())
            if (folder_of(offer) / "index.json").exists() else None)),
)  # fmt: skip


class _Marked(PassingSource):
    """Has a file beside its version for as long as it is read."""

    def __init__(self, inner: Any, transport: Any, offer: Offer) -> None:
        super().__init__(inner, transport, offer)
        self.mark = folder_of(offer).parent / f".reading-{os.getpid()}"
        self.mark.touch()

    def close(self) -> None:
        self.mark.unlink(missing_ok=True)
        super().close()


@breaks_ends("close", "transport.close.while_read", Source=_Marked)
def ClosesWhenReadersAre(original: Original, self: DiskTransport) -> None:
    """The controller's `close` leaves what somebody may still read."""
    if self.folder is not None and list(self.folder.path.glob(".reading-*")):
        os.close(self.folder.lock)
        self.folder = None
    original()


@breaks("release", "transport.release.frees", "transport.fault.no_room")
def KeepsThePieces(original: Original, offer: Offer) -> None:
    """The files of a version that was not finished are moved aside for inspection."""
    folder = folder_of(offer)
    if folder.exists() and not (folder / "index.json").exists():
        kept = Path(tempfile.mkdtemp(dir=folder.parent, prefix="kept-"))
        for number in range(50_000 // 4096):
            (kept / str(number)).write_bytes(bytes(4096))
    original()


SHM_SINK_ROWS = breaks_shm_sink.rows(
    row("RoomShowsAsMemoryError", "Too little room shows as whatever the system raised.", "transport.room.refused",
        begin=catches(ResourceError, lambda error: MemoryError(str(error)))),
)  # fmt: skip


@breaks_sink("write", "transport.fault.no_room")
def IgnoresFullDisks(original: Original, self: Any, bucket: Mapping[str, Tensor]) -> None:
    """A write that failed for want of room is taken for done."""
    try:
        original()
    except StorageError:
        specs = tuple(spec for spec in self.manifest.tensors if spec.name not in bucket)
        self.anew(attrs.evolve(self.manifest, tensors=specs))
        for spec in specs:
            self.inner.write({spec.name: torch.ones(spec.shape, dtype=getattr(torch, spec.dtype))})


class _Pickling(PassingSink):
    def finish(self) -> Any:
        (folder_of(self.offer) / "manifest.bin").write_bytes(pickle.dumps(self.manifest))
        return super().finish()


@breaks_ends("source", "transport.safe.unpickled", "transport.safe.bomb", Sink=_Pickling)
def PickledManifest(original: Original, offer: Offer) -> Any:
    """The manifest is stored as a pickle, and unpickled by every receiver."""
    source = original()
    try:
        pickle.loads((folder_of(offer) / "manifest.bin").read_bytes())
    except Exception as error:
        raise WeightSyncError("the manifest cannot be read", why=str(error)) from error
    return source


@breaks("open", "transport.safe.private")
def WeightsOpenToAll(original: Original) -> Any:
    """The folder of the weights can be read by every user of the machine."""
    offer = original()
    for path in (folder_of(offer), folder_of(offer).parent):
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


_KEPT: dict[Path, dict[str, Tensor]] = {}


ENDS_ROWS = breaks_ends.rows(
    row("ReadsFromItsOwnMemory",
        "A receiver in the sender's process is given the sender's tensors, not what was stored.",
        "transport.fault.flip",
        Sink=subclass("Keeping", PassingSink, {
            "write": then(lambda self, bucket: _KEPT.setdefault(folder_of(self.offer), {}).update(
                {name: tensor.detach().clone() for name, tensor in bucket.items()}))}),
        Source=subclass("Remembering", PassingSource, {
            "alter": lambda self, name, tensor: _KEPT.get(folder_of(self.offer), {}).get(name, tensor)})),
    row("ReadersHoldTheVersion", "A version is not deleted as long as a reader has not said that it is done.",
        "transport.fault.receiver_killed", row="dead-peer", Source=_Marked,
        release=before(lambda offer: WeightSyncError("the version is being read")
            if list(folder_of(offer).parent.glob(".reading-*")) else None)),
)  # fmt: skip


@breaks_source("buckets", "transport.fault.truncated", row="update-chain")
def SkipsWhatItCannotRead(self: PassingSource) -> Any:
    """A bucket that cannot be read is left out."""
    read = self.inner.read

    def lenient(file: str, names: list[str]) -> Any:
        try:
            return read(file, names)
        except WeightSyncError:
            return {}

    self.inner.read = lenient
    try:
        yield from (bucket for bucket in self.inner.buckets() if bucket)
    except WeightSyncError:
        return


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
