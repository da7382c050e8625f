"""Broken streams: ends that wait for ever, end too early, or do not hear that another has left.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, WeightManifest
from areal_core.weights.sink import CheckedSink
from areal_local.transports import collective
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.collective_source import CollectiveSource, Keeper
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, gives, row, then
from areal_proof.mutants.weight_parts import PassingSource
from areal_torch.collective.group import Group
from areal_torch.collective.rendezvous import Rendezvous

breaks = breaking("transport/collective", CollectiveTransport)


@breaks("source", "transport.stream.sender_stops")
def DoneWithTheLastByte(self: CollectiveTransport, offer: Offer) -> Any:
    """A receiver that has every byte takes them for a version, though the sender has not finished."""

    class Source(CollectiveSource):
        def wait_finished(self) -> None:
            self._done = True

    return Source(Rendezvous(offer, self._connections), offer, self._keeper)


@breaks("source", "transport.stream.sender_killed", "transport.stream.sender_stops")
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


@breaks("expect", "transport.stream.alone", "transport.stream.receiver_killed")
def NamesNobody(original: Original, offer: Offer, receivers: Sequence[str]) -> Any:
    """Errors speak of a receiver by number, not by the name it has in the run."""
    anonymous = [f"#{number}" for number, _ in enumerate(receivers)] if len(set(receivers)) > 1 else receivers
    return original(offer, ["#0"] if len(receivers) == 1 else anonymous)


class _Deaf(collective._Broadcaster):
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


class _Hoard(Keeper):
    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Group] = []

    def keep(self, group: Group) -> None:
        self.groups.append(group)


ROWS = breaks.rows(
    row("WaitsForEver", "An end waits ten minutes for the others, whatever it was told.", "transport.stream.alone",
        row="dead-peer", open=gives(location=lambda result: {**result.location, "timeout_ms": 600000})),
    row("ExpectsAnything", "Takes a fleet of nobody, and one receiver for two.", "transport.stream.named",
        expect=lambda original, offer, receivers: () if not receivers else original(offer,
            tuple(dict.fromkeys(receivers)))),
    row("OneSeatForAll", "Every receiver is given the first one's offer.", "transport.stream.everybody",
        "transport.stream.named", expect=after(lambda result: (result[0],) * len(result))),
    row("SendsIntoTheVoid", "A sender whose receivers are gone goes on, and finishes.",
        "transport.stream.receiver_leaves", "transport.stream.receiver_killed",
        sink=lambda self, offer: CheckedSink(_Deaf(Rendezvous(offer, self._connections), offer, self._keeper),
            version=offer.version, bucket_bytes=1000)),
    row("KeepsEveryGroup", "Every version has a group of its own, and none is left again.", "transport.stream.clean",
        __init__=then(lambda self: setattr(self, "_keeper", _Hoard()))),
    row("OneProcessOnly", "Ends meet only in the controller's own process.", "transport.stream.crosses",
        open=gives(location=lambda result: {**result.location, "pid": os.getpid()}),
        sink=before(lambda offer: WeightSyncError("the sender is in another process")
            if offer.location["pid"] != os.getpid() else None)),
    row("ForeignErrors", "What the socket raises reaches the engine as it is.", "transport.stream.controller_killed",
        source=catches(WeightSyncError, lambda error: ConnectionError(error.what))),
)  # fmt: skip
