"""Broken transports: what readers do spreads, and what was given up stays.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path
from typing import Any, ClassVar

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport, _Mapped
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, row, then
from areal_proof.mutants.weight_parts import PassingSink

breaks = breaking("transport/shm", ShmTransport)
breaks_disk = breaking("transport/disk", DiskTransport)


class _Private(_Mapped):
    def map(self, offer: Offer, size: int) -> mmap.mmap:
        """Return a private view that can be written to, always the same one."""
        if self._map is None:
            with Path(str(offer.location["path"])).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return self._map


ROWS = breaks.rows(
    row("ReadersMayWrite", "Readers map the segment as the sender does: what one writes, all read.",
        "transport.reader.writes", row="one-destination",
        __init__=then(lambda self: setattr(self, "_reading", _Mapped(writable=True)))),
    row("ReaderKeepsItsOwnWriting",
        "What a reader wrote into its view it reads there again, in place of later versions.",
        "transport.reader.writes", row="one-destination",
        __init__=then(lambda self: setattr(self, "_reading", _Private(writable=False)))),
)  # fmt: skip


@breaks_disk("sink", "transport.abort.frees", row="flat-memory")
def AbortWaitsForRelease(original: Original) -> Any:
    """`abort` makes a version unreadable and leaves its files to `release`."""

    class Sink(PassingSink):
        def abort(self) -> None:
            self.inner._open = False

    return Sink(original())


@breaks_disk("release", "transport.release.again")
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
