"""Many receivers of one version: each gets all of it, and none disturbs another.

Knows: sources in turns, at once, left early and closed twice.
Does not know: how bytes travel.
"""

from __future__ import annotations

import threading

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_ends import Received
from areal_conformance.benches.transport_tensors import noise, plain, shapes, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import bits, same
from areal_conformance.outcome import Violation, expect


@check("transport.source.many", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def many(bench: TransportBench) -> None:
    """Every receiver of one offer gets every tensor, one after the other and in turns, from one end or from several."""
    tensors = {f"layers.{n}": noise((600,), "float32", n) for n in range(6)} | plain(1) | shapes(2)
    controller, shared = bench.transport(small_buckets=True), bench.transport(small_buckets=True)
    offer = controller.open(1)
    bench.send(bench.transport(), offer, tensors)
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
    expect(
        all(bits(tensor) == bits(tensors[name]) for name, tensor in held.items()),
        "a bucket changed while another receiver of the same process read on; it must hold until the next is asked for",
    )
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
    offer = controller.open(1)
    bench.send(bench.transport(), offer, tensors)
    ends = [bench.transport(small_buckets=True) for _ in range(4)]
    received: list[Received] = []
    errors: list[BaseException] = []
    start = threading.Barrier(len(ends))

    def read(number: int) -> None:
        start.wait()
        try:
            for _ in range(3):
                received.append(bench.receive(ends[number], offer))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise Violation(f"{len(errors)} of 4 receivers at once failed: {errors[0]!r}") from errors[0]
    for one in received:
        same(tensors, one, "four receivers at once")
    controller.release(offer)


@check("transport.source.left", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def left(bench: TransportBench) -> None:
    """A source closed unread, half read, or twice takes nothing away from the others; nor does the end it came from."""
    controller, leaving = bench.transport(small_buckets=True), bench.transport(small_buckets=True)
    offer = controller.open(1)
    sender = bench.transport()
    bench.send(sender, offer, plain(1))
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
