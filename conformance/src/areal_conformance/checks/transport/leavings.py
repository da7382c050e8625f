"""Abort, release and close leave nothing, in any order: no file, segment, descriptor, mapping, thread or socket.

Knows: what a process holds before and after, and room on disk and in memory that has a descriptor.
Does not know: what of it a transport uses, or keeps in the memory of a process of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_footprint import bytes_under, places, room
from areal_conformance.benches.transport_tensors import plain, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import arrives, nothing_left, same, sent_until, unreadable
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, ResourceError, StorageError
from areal_core.weights.tensors import manifest_of


@check("transport.close.clean", level=Level.SINGLE, law=10, spec="weights", unless=("streams",))
def close_clean(bench: TransportBench) -> None:
    """`close` in any state leaves nothing of any offer behind, and may be called again."""
    before = bench.look()
    stages = {"open": "made", "begun": "begun", "half": "half", "aborted": "half"}
    states = ("unused", *stages, "finished", "read", "released", "two")
    for state in states:
        controller, sender, receiver = (bench.transport(small_buckets=True) for _ in range(3))
        known: set[Path] = set()
        if state != "unused":
            offer = controller.open(1)
            known = places(offer)
            sink = sent_until(bench, sender, offer, plain(1), stages.get(state, "finished"))
            if state == "aborted":
                sink.abort()
            if state == "read":
                bench.receive(receiver, offer)
            if state == "released":
                controller.release(offer)
            if state == "two":
                second = controller.open(2)
                known |= places(second)
                bench.send(sender, second, plain(2))
                known |= places(controller.open(3))
        for end in (receiver, sender, controller):
            for _ in range(3):
                bench.within(end.close, "close")
        if state != "unused":
            unreadable(bench, bench.transport(), offer, f"closed when {state}")
            del sink
        for made in bench.forget():
            made.close()
        nothing_left(bench, before, known, f"after everyone closed, {state}")


@check("transport.close.while_read", level=Level.SINGLE, law=10, spec="weights", unless=("streams",))
def close_while_read(bench: TransportBench) -> None:
    """A controller that closes while a version is read or written ends; so do the others, and nothing is left."""
    before = bench.look()
    controller, sender, receiver = (bench.transport(small_buckets=True) for _ in range(3))
    offer, unfinished = bench.sent(controller, plain(1), sender=sender), controller.open(2)
    known = places(offer) | places(unfinished)
    sink = sent_until(bench, sender, unfinished, plain(2), "half")
    source = receiver.source(bench.travelled(offer))
    reading = iter(source.buckets())
    next(reading)
    bench.within(controller.close, "close while others read and write")
    with contextlib.suppress(ArealError):
        bench.within(partial(list, reading), "reading what was closed")
    with contextlib.suppress(ArealError):
        bench.within(sink.finish, "finishing what was closed")
    bench.within(sink.abort)
    bench.within(source.close)
    for end in (sender, receiver, controller):
        bench.within(end.close)
    del reading, source, sink
    unreadable(bench, bench.transport(), unfinished, "a version whose controller closed while it was sent")
    for made in bench.forget():
        made.close()
    nothing_left(bench, before, known, "after a close in the middle")


@check("transport.release.frees", level=Level.SINGLE, law=10, spec="weights", unless=("streams",))
def release_frees(bench: TransportBench) -> None:
    """`release` gives the room of a version back, finished or not: twenty updates hold no more than three did."""
    ways = {"finished": "finished", "aborted": "written", "given up": "half", "never written": "made"}
    for how, stage in ways.items():
        controller, sender = bench.transport(), bench.transport()
        early = (0, 0)
        for version in range(1, 21):
            tensors = sized(40_000, 3, version)
            offer = controller.open(version)
            sink = sent_until(bench, sender, offer, tensors, stage)
            if how == "aborted":
                sink.abort()
            controller.release(offer)
            if how == "given up":
                sink.abort()
            del sink
            if version == 3:
                early = _held(bench)
        # Threads and sockets of the other end may need a moment after the call that ends them.
        enough = bench.becomes(partial(_holds_at_most, bench, early[0] + 2, early[1] + 1000))
        late = _held(bench)
        held = f"after 3 the process held {early[0]} things and {early[1]} bytes of files"
        expect(enough, f"{how} versions, each released: {held}, after 20 it holds {late[0]} and {late[1]}")
        for end in (sender, controller):
            end.close()


@check("transport.room.refused", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def room_refused(bench: TransportBench) -> None:
    """A version that fits nowhere is refused with StorageError or ResourceError, and leaves nothing readable."""
    before = bench.look()
    controller, sender = bench.transport(), bench.transport()
    offer = controller.open(1)
    huge = manifest_of({"huge": torch.empty(2**50, device="meta")}.items(), version=1)
    sink = sender.sink(bench.travelled(offer))
    try:
        bench.within(partial(sink.begin, huge), "announcing 4.5 PB")
    except (StorageError, ResourceError) as error:
        expect(error.why or error.fix, f"the error must say why or what to do: {error}")
    except ArealError as error:
        raise Violation(f"expected StorageError or ResourceError, got {type(error).__name__}: {error}") from error
    else:
        bench.notes.append("4.5 PB were announced without an error; there is no room for them")
    sink.abort()
    unreadable(bench, bench.transport(), offer, "a version that did not fit")
    controller.release(offer)
    arrives(bench, controller, plain(2), "the version after one that did not fit", sender=sender)
    del sink
    for made in bench.forget():
        made.close()
    nothing_left(bench, before, places(offer), "after a version that did not fit")


def _held(bench: TransportBench) -> tuple[int, int]:
    return bench.look().size, bytes_under(bench.temporary)


def _holds_at_most(bench: TransportBench, things: int, num_bytes: int) -> bool:
    held = _held(bench)
    return held[0] <= things and held[1] <= num_bytes


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
        told = f"a version of {_SIZE} bytes, {how}, took {written} bytes of room"
        expect(left < _SIZE // 20, f"{told}; aborted and not yet released it takes {left}")
        unreadable(bench, bench.transport(), offer, f"aborted, {how}")
        controller.release(offer)
        arrives(bench, controller, tensors, f"the version after one aborted, {how}", sender=sender)
        for made in bench.forget():
            made.close()


@check("transport.release.again", level=Level.SINGLE, law=10, spec="weights", unless=("streams",))
def release_again(bench: TransportBench) -> None:
    """`release` and `abort` may come again, late and in any order: they raise nothing and hurt no later version."""
    for how in ("never written", "half", "finished", "read"):
        controller, sender = bench.transport(), bench.transport()
        offer = controller.open(1)
        stage = {"never written": "made", "half": "half"}.get(how, "finished")
        sink = sent_until(bench, sender, offer, plain(1), stage)
        if how == "read":
            bench.receive(bench.transport(), offer)
        ends: tuple[Callable[[], None], ...] = (sink.abort, partial(controller.release, bench.travelled(offer)))
        for end in (*ends, *ends, *reversed(ends)):
            bench.within(end, "giving up a version again")
        following = bench.sent(controller, plain(2), version=2, sender=sender)
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
