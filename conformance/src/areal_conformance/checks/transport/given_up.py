"""A version given up takes no room, and giving it up again changes nothing: abort, release, close, in any order.

Knows: room on disk and in memory that has a descriptor.
Does not know: what a transport keeps in the memory of a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_footprint import room
from areal_conformance.benches.transport_stores import places
from areal_conformance.benches.transport_tensors import plain, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, unreadable
from areal_conformance.outcome import expect
from areal_core.weights.specs import manifest_of

_SIZE = 4_000_000
"""Bytes of a version; what `open` needs is far less."""


@check("transport.abort.frees", level=Level.SINGLE, law=10, spec="weights", unless=("streams",))
def abort_frees(bench: TransportBench) -> None:
    """`abort` drops the bytes at once, half a version or a whole one: it does not wait for `release`."""
    tensors = sized(_SIZE, 4, 1)
    for how in ("announced", "half", "whole", "refused"):
        controller, sender = bench.transport(), bench.transport()
        offer = controller.open(1)
        known = places(offer)
        opened = room(bench.temporary, known)
        sink = sender.sink(bench.travelled(offer))
        sink.begin(manifest_of(tensors.items(), version=1))
        for number, (name, tensor) in enumerate(tensors.items()):
            if how == "whole" or (how in ("half", "refused") and number < 2):
                sink.write({name: tensor})
        written = room(bench.temporary, known) - opened
        if how == "refused":
            try:
                sink.write({"part.0": tensors["part.0"]})
            except Exception:
                bench.notes.append("a tensor that came twice was refused")
        sink.abort()
        bench.becomes(partial(_small, bench, known, opened))
        left = room(bench.temporary, known) - opened
        bench.numbers[f"{how}: bytes before abort"] = float(written)
        expect(
            left < _SIZE // 20,
            f"a version of {_SIZE} bytes, {how}, took {written} bytes of room; aborted and not yet released it "
            f"takes {left}",
        )
        unreadable(bench, bench.transport(), offer, f"aborted, {how}")
        controller.release(offer)
        following = controller.open(2)
        bench.send(sender, following, tensors)
        same(tensors, bench.receive(bench.transport(), following), f"the version after one aborted, {how}")
        for made in bench.forget():
            made.close()


@check("transport.release.again", level=Level.SINGLE, law=10, spec="weights", unless=("streams",))
def release_again(bench: TransportBench) -> None:
    """`release` and `abort` may come again, late and in any order: they raise nothing and hurt no later version."""
    for how in ("never written", "half", "finished", "read"):
        controller, sender = bench.transport(), bench.transport()
        offer = controller.open(1)
        sink = sender.sink(bench.travelled(offer))
        if how != "never written":
            sink.begin(manifest_of(plain(1).items(), version=1))
            sink.write({"embed.weight": plain(1)["embed.weight"]} if how == "half" else plain(1))
        if how in ("finished", "read"):
            sink.finish()
        if how == "read":
            bench.receive(bench.transport(), offer)
        ends: tuple[Callable[[], None], ...] = (sink.abort, partial(controller.release, bench.travelled(offer)))
        for end in (*ends, *ends, *reversed(ends)):
            bench.within(end, "giving up a version again")
        following = controller.open(2)
        bench.send(sender, following, plain(2))
        for end in ends:
            bench.within(end, "giving up a version while the next one is there")
        same(plain(2), bench.receive(bench.transport(), following), f"the version after one {how} was released again")
        unreadable(bench, bench.transport(), offer, f"{how}, released")
        bench.within(controller.close, "close")
        late: tuple[Callable[[], None], ...] = (controller.close, partial(controller.release, following))
        for end in (*ends, *late):
            bench.within(end, "giving up a version after close")


def _small(bench: TransportBench, known: set[Path], opened: int) -> bool:
    return room(bench.temporary, known) - opened < _SIZE // 20
