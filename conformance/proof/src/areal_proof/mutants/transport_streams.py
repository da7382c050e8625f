"""Broken streams: ends that wait for ever, end too early, or do not hear that another has left.

Knows: one sin a class.
Does not know: which check sees it, but for the names of its killers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, WeightManifest
from areal_core.weights.sink import CheckedSink
from areal_local.transports import collective
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.collective_source import CollectiveSource, Keeper
from areal_proof.mutants import mutant
from areal_proof.mutants.weight_parts import PassingSource
from areal_torch.collective.group import Group
from areal_torch.collective.rendezvous import Rendezvous


@mutant("transport/collective", killers=("transport.stream.sender_stops",))
class DoneWithTheLastByte(CollectiveTransport):
    """A receiver that has every byte takes them for a version, though the sender has not finished."""

    def source(self, offer: Offer) -> CollectiveSource:
        class Source(CollectiveSource):
            def wait_finished(self) -> None:
                self._done = True

        return Source(Rendezvous(offer, self._connections), offer, self._keeper)


@mutant("transport/collective", killers=("transport.stream.sender_killed", "transport.stream.sender_stops"))
class EndsQuietly(CollectiveTransport):
    """A receiver whose sender is gone ends as if that had been all."""

    def source(self, offer: Offer) -> Any:
        class Source(PassingSource):
            def buckets(self) -> Iterator[Mapping[str, Tensor]]:
                _ = self.manifest
                try:
                    yield from super().buckets()
                except WeightSyncError:
                    return

        return Source(super().source(offer))


@mutant("transport/collective", killers=("transport.stream.alone",), row="dead-peer")
class WaitsForEver(CollectiveTransport):
    """An end waits ten minutes for the others, whatever it was told."""

    def open(self, version: int) -> Offer:
        offer = super().open(version)
        return attrs.evolve(offer, location={**offer.location, "timeout_ms": 600_000})


@mutant("transport/collective", killers=("transport.stream.alone", "transport.stream.receiver_killed"))
class NamesNobody(CollectiveTransport):
    """Errors speak of a receiver by number, not by the name it has in the run."""

    def expect(self, offer: Offer, receivers: Sequence[str]) -> tuple[Offer, ...]:
        anonymous = [f"#{number}" for number, _ in enumerate(receivers)] if len(set(receivers)) > 1 else receivers
        return super().expect(offer, ["#0"] if len(receivers) == 1 else anonymous)


@mutant("transport/collective", killers=("transport.stream.named",))
class ExpectsAnything(CollectiveTransport):
    """Takes a fleet of nobody, and one receiver for two."""

    def expect(self, offer: Offer, receivers: Sequence[str]) -> tuple[Offer, ...]:
        if not receivers:
            return ()
        return super().expect(offer, tuple(dict.fromkeys(receivers)))


@mutant("transport/collective", killers=("transport.stream.everybody", "transport.stream.named"))
class OneSeatForAll(CollectiveTransport):
    """Every receiver is given the first one's offer."""

    def expect(self, offer: Offer, receivers: Sequence[str]) -> tuple[Offer, ...]:
        offers = super().expect(offer, receivers)
        return (offers[0],) * len(offers)


@mutant("transport/collective", killers=("transport.stream.receiver_leaves", "transport.stream.receiver_killed"))
class SendsIntoTheVoid(CollectiveTransport):
    """A sender whose receivers are gone goes on, and finishes."""

    def sink(self, offer: Offer) -> CheckedSink:
        return CheckedSink(
            _Deaf(Rendezvous(offer, self._connections), offer, self._keeper), version=offer.version, bucket_bytes=1000
        )


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


@mutant("transport/collective", killers=("transport.stream.clean",))
class KeepsEveryGroup(CollectiveTransport):
    """Every version has a group of its own, and none is left again."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._keeper = _Hoard()


class _Hoard(Keeper):
    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Group] = []

    def keep(self, group: Group) -> None:
        self.groups.append(group)


@mutant("transport/collective", killers=("transport.stream.crosses",))
class OneProcessOnly(CollectiveTransport):
    """Ends meet only in the controller's own process."""

    def open(self, version: int) -> Offer:
        offer = super().open(version)
        return attrs.evolve(offer, location={**offer.location, "pid": os.getpid()})

    def sink(self, offer: Offer) -> CheckedSink:
        if offer.location["pid"] != os.getpid():
            raise WeightSyncError("the sender is in another process")
        return super().sink(offer)


@mutant("transport/collective", killers=("transport.stream.controller_killed",))
class ForeignErrors(CollectiveTransport):
    """What the socket raises reaches the engine as it is."""

    def source(self, offer: Offer) -> CollectiveSource:
        try:
            return super().source(offer)
        except WeightSyncError as error:
            raise ConnectionError(error.what) from error
