"""Transports that serve their readers badly: other versions, one reader only, another process.

Knows: how each goes wrong.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, Receipt
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking
from areal_proof.mutants.weight_parts import PassingSink, PassingSource

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


@mutant("transport/disk", killers=("transport.source.left", "transport.process.receivers"))
class LastOneOutTakesAll(DiskTransport):
    """A receiver that closes its end deletes the version it read."""

    reads: Path | None = None

    def source(self, offer: Offer) -> Any:
        source = super().source(offer)
        self.reads = Path(str(offer.location["folder"]))
        return source

    def close(self) -> None:
        if self.reads is not None:
            for file in self.reads.glob("*"):
                file.unlink()
        super().close()


_PLACES: dict[str, str] = {}
"""Known in one process only, which is the sin."""


@mutant("transport/disk", killers=("transport.process.crosses",))
class KnownHereOnly(DiskTransport):
    """Which versions are finished is known only in the process that sent them."""

    def sink(self, offer: Offer) -> Any:
        class Sink(PassingSink):
            def finish(self) -> Receipt:
                receipt = super().finish()
                _PLACES[str(offer.location["folder"])] = "here"
                return receipt

        return Sink(super().sink(offer))

    def source(self, offer: Offer) -> Any:
        if str(offer.location["folder"]) not in _PLACES:
            raise WeightSyncError("nobody told where the version is")
        return super().source(offer)
