"""Versions never mix: each offer has its own bytes, whichever came before, after or beside it.

Knows: several offers at once and one after the other.
Does not know: how bytes travel.
"""

from __future__ import annotations

import attrs

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_footprint import bytes_under
from areal_conformance.benches.transport_tensors import dtypes, noise, plain, shapes, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, unreadable
from areal_conformance.outcome import Violation
from areal_core.contract.errors import ArealError, WeightSyncError
from areal_core.weights.specs import manifest_of


@check("transport.version.announced", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def announced(bench: TransportBench) -> None:
    """A sender that announces another version than the offer's is refused, and nothing becomes readable."""
    for offered, told in ((5, 6), (5, 4), (5, 0)):
        controller = bench.transport()
        offer = controller.open(offered)
        sink = bench.transport().sink(bench.travelled(offer))
        try:
            sink.begin(manifest_of(plain(1).items(), version=told))
            sink.write(plain(1))
            sink.finish()
        except WeightSyncError:
            pass
        except ArealError as error:
            raise Violation(f"expected WeightSyncError, got {type(error).__name__}: {error}") from error
        else:
            raise Violation(f"version {told} was announced to an offer of version {offered}, and it was taken")
        unreadable(bench, bench.transport(), offer, "after a wrong announcement")
        unreadable(bench, bench.transport(), attrs.evolve(offer, version=told), "the version announced by mistake")
        controller.release(offer)


@check("transport.version.offered", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def offered(bench: TransportBench) -> None:
    """One version cannot be read by an offer that names another, older or newer."""
    controller = bench.transport()
    offer = controller.open(5)
    bench.send(bench.transport(), offer, plain(1))
    for other in (4, 6, 0, 5 + 2**32):
        unreadable(bench, bench.transport(), attrs.evolve(offer, version=other), f"version {other} asked of version 5")
    same(plain(1), bench.receive(bench.transport(), offer), "the version offered")
    controller.release(offer)


@check("transport.version.apart", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def apart(bench: TransportBench) -> None:
    """Offers open at once, of different versions or of one, written in turns, keep their own bytes."""
    for versions in ((1, 2), (7, 7)):
        controller, sender, receiver = (bench.transport() for _ in range(3))
        sets = [plain(1), plain(2), dtypes(3)]
        offers = [controller.open(version) for version in (*versions, 9)]
        sinks = [sender.sink(bench.travelled(offer)) for offer in offers]
        for offer, sink, tensors in zip(offers, sinks, sets, strict=True):
            sink.begin(manifest_of(tensors.items(), version=offer.version))
        for position in range(20):
            for sink, tensors in zip(sinks, sets, strict=True):
                if position < len(tensors):
                    name = list(tensors)[position]
                    sink.write({name: tensors[name]})
        for sink in reversed(sinks):
            sink.finish()
        for offer, tensors in zip(offers, sets, strict=True):
            same(tensors, bench.receive(receiver, offer), f"version {offer.version} of {versions}, all open at once")
        for number, offer in enumerate(offers):
            controller.release(offer)
            for later in range(number + 1, len(offers)):
                same(sets[later], bench.receive(receiver, offers[later]), "a version after another was released")


@check("transport.version.follow", level=Level.SINGLE, law=7, spec="weights")
def follow(bench: TransportBench) -> None:
    """Update after update carries its own bytes: alike, smaller, larger, renamed, with gaps in the versions."""
    controller, sender, receiver = (bench.transport(small_buckets=True) for _ in range(3))
    updates = [
        plain(1),
        plain(2),
        plain(2),
        sized(20_000, 4, 3),
        plain(4),
        dtypes(5),
        {"one": noise((2,), "float32", 6)},
        shapes(7),
        {name: tensor * 0 for name, tensor in plain(8).items()},
        plain(9),
        sized(60_000, 3, 10),
    ]
    version = 0
    for number, tensors in enumerate(updates):
        version += 1 + number * number
        offer = controller.open(version)
        _, (received,) = bench.carry(controller, sender, [receiver], offer, tensors)
        same(tensors, received, f"update {number}, version {version}")
        controller.release(offer)


@check("transport.version.many", level=Level.LOOP, law=10, spec="weights", unless=("streams",), deadline_s=120.0)
def many(bench: TransportBench) -> None:
    """A hundred updates in a row arrive whole, and hold no more files, descriptors and threads than ten did."""
    controller, sender, receiver = (bench.transport() for _ in range(3))
    held: list[tuple[int, int]] = []
    for version in range(1, 101):
        tensors = plain(version)
        offer = controller.open(version)
        bench.send(sender, offer, tensors)
        if version % 7 == 0:
            source = receiver.source(bench.travelled(offer))
            next(iter(source.buckets()))
            source.close()
        if version % 5 == 0:
            same(tensors, bench.receive(receiver, offer), f"version {version}")
        controller.release(offer)
        if version % 10 == 0:
            held.append((bench.look().size, bytes_under(bench.temporary)))
    first, last = held[0], held[-1]
    bench.numbers.update(things_after_10=first[0], things_after_100=last[0], bytes_after_100=last[1])
    if last[0] > first[0] + 4 or last[1] > first[1] + 4096:
        raise Violation(
            f"after 10 updates the process held {first[0]} files, descriptors, mappings and threads and {first[1]} "
            f"bytes of files; after 100 it holds {last[0]} and {last[1]}"
        )
