"""Versions never mix, nor do their receivers: each offer has its own bytes, and each receiver gets all of them.

Knows: several offers at once and one after the other; sources in turns, at once, left early and closed twice.
Does not know: how bytes travel.
"""

from __future__ import annotations

import threading
from functools import partial

import attrs
from torch import Tensor

from areal_conformance.benches.transport import WAIT_S, TransportBench
from areal_conformance.benches.transport_ends import Received
from areal_conformance.benches.transport_footprint import bytes_under
from areal_conformance.benches.transport_tensors import dtypes, large, noise, nudged, plain, shapes, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import bits, same, sent_until, unreadable
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import WeightSink, WeightTransport
from areal_core.weights.tensors import manifest_of


@check("transport.version.announced", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def announced(bench: TransportBench) -> None:
    """A sender that announces another version than the offer's is refused, and nothing becomes readable."""
    for offered, told in ((5, 6), (5, 4), (5, 0)):
        controller = bench.transport()
        offer = controller.open(offered)
        sink = bench.transport().sink(bench.travelled(offer))

        def announce(sink: WeightSink = sink, told: int = told) -> None:
            sink.begin(manifest_of(plain(1).items(), version=told))
            sink.write(plain(1))
            sink.finish()

        raises(WeightSyncError, f"version {told} announced to an offer of version {offered}", announce)
        unreadable(bench, bench.transport(), offer, "after a wrong announcement")
        unreadable(bench, bench.transport(), attrs.evolve(offer, version=told), "the version announced by mistake")
        controller.release(offer)


@check("transport.version.offered", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def offered(bench: TransportBench) -> None:
    """One version cannot be read by an offer that names another, older or newer."""
    controller = bench.transport()
    offer = bench.sent(controller, plain(1), version=5)
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
        ends = zip(offers, sets, strict=True)
        sinks = [sent_until(bench, sender, offer, tensors, "begun") for offer, tensors in ends]
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
        large(11),
        nudged(large(11), 1),
        nudged(large(11), 1),
        large(11),
        {**nudged(large(11), 2), **plain(12)},
    ]
    version = 0
    for number, tensors in enumerate(updates):
        version += 1 + number * number
        offer = controller.open(version)
        _, (received,) = bench.carry(controller, sender, [receiver], offer, tensors)
        same(tensors, received, f"update {number}, version {version}")
        controller.release(offer)


@check("transport.version.alike", level=Level.SINGLE, law=7, spec="weights")
def alike(bench: TransportBench) -> None:
    """Versions of as many bytes and other tensors (turned, of another dtype, renamed, reordered) arrive as they are."""
    controller, sender, steady = (bench.transport() for _ in range(3))
    for version, tensors in enumerate(_of_one_size(), 1):
        offer = controller.open(version)
        _, received = bench.carry(controller, sender, [steady, bench.transport()], offer, tensors)
        for who, one in zip(("a receiver of all versions", "a new receiver"), received, strict=True):
            same(tensors, one, f"version {version}, {who}")
            announced = [spec.name for spec in one.manifest.tensors]
            expect(announced == list(tensors), f"version {version}, {who}: the manifest names {announced}")
        controller.release(offer)


def _of_one_size() -> list[dict[str, Tensor]]:
    """Return sets of tensors of as many bytes, whose specifications are as long as text, each unlike the one before."""
    half = {"embed.weight": (32, 32), "layer.weight": (16, 32), "other.weight": (64, 96)}
    drawn: tuple[tuple[str, dict[str, tuple[int, int]]], ...] = (
        ("float32", {"embed.weight": (32, 16), "layer.weight": (16, 16), "other.weight": (64, 48)}),
        ("float32", {"embed.weight": (16, 32), "layer.weight": (16, 16), "other.weight": (48, 64)}),
        ("float32", {"embed.weight": (16, 16), "layer.weight": (16, 32), "other.weight": (48, 64)}),
        ("float16", half),
        ("float16", dict(reversed(half.items()))),
    )
    return [
        {name: noise(shape, dtype, 10 * turn + number) for number, (name, shape) in enumerate(shapes.items())}
        for turn, (dtype, shapes) in enumerate(drawn)
    ]


@check("transport.version.many", level=Level.LOOP, law=10, spec="weights", unless=("streams",), deadline_s=120.0)
def many(bench: TransportBench) -> None:
    """A hundred updates in a row arrive whole, and hold no more files, descriptors and threads than ten did."""
    controller, sender, receiver = (bench.transport() for _ in range(3))
    held: list[tuple[int, int]] = []
    for version in range(1, 101):
        tensors = plain(version)
        offer = bench.sent(controller, tensors, version=version, sender=sender)
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
    early = f"{first[0]} files, descriptors, mappings and threads and {first[1]} bytes of files"
    told = f"after 10 updates the process held {early}; after 100 it holds {last[0]} and {last[1]}"
    expect(last[0] <= first[0] + 4 and last[1] <= first[1] + 4096, told)


@check("transport.source.many", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def many_receivers(bench: TransportBench) -> None:
    """Every receiver of one offer gets every tensor, one after the other and in turns, from one end or from several."""
    tensors = {f"layers.{n}": noise((600,), "float32", n) for n in range(6)} | plain(1) | shapes(2)
    controller, shared = bench.transport(small_buckets=True), bench.transport(small_buckets=True)
    offer = bench.sent(controller, tensors)
    for number in range(3):
        same(tensors, bench.receive(shared, offer), f"reading {number} by one end")
        same(tensors, bench.receive(bench.transport(), offer), f"reading {number} by a new end")
    ends = (shared, shared, bench.transport(small_buckets=True))
    sources = [end.source(bench.travelled(offer)) for end in ends]
    readings = [iter(source.buckets()) for source in sources]
    copies: list[dict[str, object]] = [{} for _ in readings]
    going = True
    while going:
        buckets = [next(reading, None) for reading in readings]
        going = any(bucket is not None for bucket in buckets)
        # Copied only now: a bucket must hold still while others of the same offer are read.
        for copy, bucket in zip(copies, buckets, strict=True):
            for name, tensor in (bucket or {}).items():
                expect(name not in copy, f"tensor {name!r} was yielded twice")
                copy[name] = tensor.clone()
    slow, quick = (shared.source(bench.travelled(offer)) for _ in range(2))
    held = next(iter(slow.buckets()))
    for _ in quick.buckets():
        continue
    still = all(bits(tensor) == bits(tensors[name]) for name, tensor in held.items())
    expect(still, "a bucket changed while another receiver read on; it must hold until the next one is asked for")
    for source in (slow, quick):
        source.close()
    for source, copy in zip(sources, copies, strict=True):
        received = Received(manifest=source.manifest, tensors=copy)  # type: ignore[arg-type]
        same(tensors, received, "three sources read in turns")
        source.close()
    controller.release(offer)


@check("transport.source.at_once", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def at_once(bench: TransportBench) -> None:
    """Receivers in several threads, each with an end of its own, get the same bytes."""
    tensors = {**sized(200_000, 6, 1), **plain(2)}
    controller = bench.transport()
    offer = bench.sent(controller, tensors)
    start = threading.Barrier(4)

    def read(end: WeightTransport) -> list[Received]:
        start.wait()
        return [bench.receive(end, offer) for _ in range(3)]

    ends = {f"receiver {number}": bench.transport(small_buckets=True) for number in range(4)}
    ended = bench.at_once({name: partial(read, end) for name, end in ends.items()}, wait_s=3 * WAIT_S)
    for name, outcome in ended.items():
        if isinstance(outcome, BaseException):
            raise Violation(f"{name} of 4 at once failed: {outcome!r}") from outcome
        for one in outcome:
            same(tensors, one, f"{name} of 4 at once")
    controller.release(offer)


@check("transport.source.left", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def left(bench: TransportBench) -> None:
    """A source closed unread, half read, or twice takes nothing away from the others; nor does the end it came from."""
    controller, leaving = bench.transport(small_buckets=True), bench.transport(small_buckets=True)
    offer = bench.sent(controller, plain(1))
    unread = leaving.source(bench.travelled(offer))
    for _ in range(3):
        bench.within(unread.close)
    half = leaving.source(bench.travelled(offer))
    reading = iter(half.buckets())
    next(reading)
    for _ in range(3):
        bench.within(half.close)
    del reading
    same(plain(1), bench.receive(leaving, offer), "the same end, after sources were left")
    staying = bench.transport(small_buckets=True)
    source = staying.source(bench.travelled(offer))
    steps = iter(source.buckets())
    copies = {name: tensor.clone() for name, tensor in next(steps).items()}
    for _ in range(2):
        bench.within(leaving.close)
    for bucket in steps:
        copies.update({name: tensor.clone() for name, tensor in bucket.items()})
    same(plain(1), Received(manifest=source.manifest, tensors=copies), "one who reads while another receiver closes")
    source.close()
    same(plain(1), bench.receive(bench.transport(), offer), "a receiver that comes after another has closed")
    controller.release(offer)
