"""The order of calls: nothing is readable before finish, after abort or after release.

Knows: the life of one offer.
Does not know: how bytes travel.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial

from torch import Tensor

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_ends import Received
from areal_conformance.benches.transport_tensors import noise, plain, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, sent_until, unreadable
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import ArealError, WeightSyncError
from areal_core.weights.tensors import manifest_of


@check("transport.finish.makes_readable", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def finish_makes_readable(bench: TransportBench) -> None:
    """Nothing can be read before `finish` has returned, though every byte was written; then everything can."""
    controller, receiver = bench.transport(), bench.transport()
    for version in (1, 2):
        tensors = plain(version)
        offer = controller.open(version)
        sink = bench.transport().sink(bench.travelled(offer))
        unreadable(bench, receiver, offer, "before begin")
        sink.begin(manifest_of(tensors.items(), version=version))
        unreadable(bench, receiver, offer, "before the first bucket")
        for name, tensor in tensors.items():
            sink.write({name: tensor})
            unreadable(bench, receiver, offer, f"after {name!r} and before finish")
        sink.finish()
        same(tensors, bench.receive(receiver, offer), "after finish")
        controller.release(offer)


@check("transport.finish.once", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def finish_once(bench: TransportBench) -> None:
    """After `finish` nothing changes what was sent: not a write, not a second finish, not a second begin."""
    tensors, others = plain(1), plain(2)
    controller = bench.transport()
    offer = controller.open(1)
    sink = sent_until(bench, bench.transport(), offer, tensors, "written")
    first = sink.finish()
    late: tuple[tuple[str, Callable[[], object]], ...] = (
        ("write", partial(sink.write, others)),
        ("begin", partial(sink.begin, manifest_of(others.items(), version=1))),
        ("write", partial(sink.write, {"embed.weight": others["embed.weight"]})),
    )
    for what, act in late:
        raises(ArealError, f"`{what}` after `finish`", act)
        same(tensors, bench.receive(bench.transport(), offer), f"after a `{what}` that came after `finish`")
    with contextlib.suppress(ArealError):
        again = sink.finish()
        expect(again == first, f"a second `finish` must fail or give the same receipt, got {again}")
    same(tensors, bench.receive(bench.transport(), offer), "after a second `finish`")
    controller.release(offer)


@check("transport.order.begin", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def begin_first(bench: TransportBench) -> None:
    """`write` and `finish` before `begin`, and a second `begin`, are refused with an ArealError."""
    tensors = plain(1)
    manifest = manifest_of(tensors.items(), version=1)
    for what, steps in (("write", ("write",)), ("finish", ("finish",)), ("second begin", ("begin", "begin"))):
        controller = bench.transport()
        offer = controller.open(1)
        sink = bench.transport().sink(bench.travelled(offer))
        acts: dict[str, Callable[[], object]] = {
            "write": partial(sink.write, tensors),
            "finish": sink.finish,
            "begin": partial(sink.begin, manifest),
        }
        for step in steps[:-1]:
            acts[step]()
        raises(ArealError, f"a {what} at the wrong time", partial(bench.within, acts[steps[-1]]))
        unreadable(bench, bench.transport(), offer, f"after a {what} at the wrong time")
        sink.abort()
        controller.release(offer)


@check("transport.abort.unreadable", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def abort(bench: TransportBench) -> None:
    """`abort` at any point leaves nothing readable, for good, however often it is called."""
    tensors = plain(1)
    for stage in ("made", "begun", "half", "written"):
        controller = bench.transport()
        offer = controller.open(1)
        sink = sent_until(bench, bench.transport(), offer, tensors, stage)
        for _ in range(3):
            bench.within(sink.abort)
            unreadable(bench, bench.transport(), offer, f"after an abort when {stage}")
        raises(ArealError, "`write` after `abort`", partial(sink.write, tensors))
        raises(ArealError, "`finish` after `abort`", sink.finish)
        unreadable(bench, bench.transport(), offer, f"after an abort when {stage}, and a late finish")
        controller.release(offer)


@check("transport.abort.then_works", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def abort_then_works(bench: TransportBench) -> None:
    """The update after an aborted one, of the same version or the next, carries its own bytes and no others."""
    controller, sender, receiver = (bench.transport() for _ in range(3))
    for version, tensors in ((1, sized(50_000, 3, 1)), (1, plain(2)), (2, plain(3)), (2, sized(9_000, 2, 4))):
        lost = controller.open(version)
        sent_until(bench, sender, lost, sized(40_000, 4, 9), "half").abort()
        controller.release(lost)
        offer = bench.sent(controller, tensors, version=version, sender=sender)
        same(tensors, bench.receive(receiver, offer), f"version {version} after an aborted one")
        unreadable(bench, receiver, lost, "the aborted offer") if bench.travelled(lost) != offer else None
        controller.release(offer)


@check("transport.release.gone", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def release_gone(bench: TransportBench) -> None:
    """A released version cannot be read any more; release is idempotent, at every stage of an offer's life."""
    controller = bench.transport()
    offers = [controller.open(version) for version in (1, 2, 3, 4)]
    begun = sent_until(bench, bench.transport(), offers[1], plain(2), "half")
    bench.send(bench.transport(), offers[2], plain(3))
    bench.send(bench.transport(), offers[3], plain(4))
    same(plain(3), bench.receive(bench.transport(), offers[2]), "version 3")
    for offer in offers[:3]:
        for _ in range(3):
            bench.within(lambda o=offer: controller.release(bench.travelled(o)), "release")  # type: ignore[misc]
        unreadable(bench, bench.transport(), offer, f"the released version {offer.version}")
        unreadable(bench, controller, offer, f"the released version {offer.version}, by the controller")
    same(plain(4), bench.receive(bench.transport(), offers[3]), "version 4, never released, after others were")
    controller.release(offers[3])
    del begun


@check("transport.release.reopened", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def release_reopened(bench: TransportBench) -> None:
    """A released offer stays gone when its version is opened and sent again: the old name never leads to new bytes."""
    controller = bench.transport()
    old = bench.travelled(bench.sent(controller, plain(1), version=5))
    same(plain(1), bench.receive(bench.transport(), old), "the first try")
    controller.release(old)
    new = bench.sent(controller, plain(2), version=5)
    same(plain(2), bench.receive(bench.transport(), new), "the second try")
    unreadable(bench, bench.transport(), old, "the first offer of version 5, released, after the second was sent")
    controller.release(old)
    same(plain(2), bench.receive(bench.transport(), new), "the second try, after the first was released once more")
    controller.release(new)


@check("transport.release.while_read", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def release_while_read(bench: TransportBench) -> None:
    """Who still reads a version when it is released gets its bytes or an error, never bytes of the next version."""
    for version, last in itertools.product((2, 1), (False, True)):
        first, second = _layers(1), _layers(2)
        controller, receiver = bench.transport(small_buckets=True), bench.transport(small_buckets=True)
        offer, got, following = bench.sent(controller, first), dict[str, Tensor](), None
        source = receiver.source(bench.travelled(offer))
        try:
            for bucket in source.buckets():
                if following is None and (len(got) + len(bucket) == len(first) if last else got):
                    controller.release(offer)  # and the bucket that is here is still to be copied
                    following = bench.sent(controller, second, version=version)
                got.update({name: tensor.clone() for name, tensor in bucket.items()})
        except WeightSyncError:
            if following is None:
                raise
        else:
            whole, when = Received(manifest=source.manifest, tensors=got), "last" if last else "second"
            same(first, whole, f"released while its {when} bucket was read, which ended well")
        finally:
            source.close()
        if following is None:  # all of it was one bucket
            controller.release(offer)
            following = bench.sent(controller, second, version=version)
        same(second, bench.receive(bench.transport(), following), "the next version")
        controller.release(following)


@check("transport.sink.late", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def sink_late(bench: TransportBench) -> None:
    """A sender that was given up on cannot spoil the next version, nor make its own readable after the release."""
    for version in (2, 1):
        controller, late_end = bench.transport(), bench.transport()
        offer = bench.travelled(controller.open(1))
        late = sent_until(bench, late_end, offer, plain(1), "half")
        controller.release(offer)
        following = controller.open(version)
        sink = sent_until(bench, bench.transport(), following, plain(2), "half")
        rest = {name: tensor for name, tensor in plain(1).items() if name != "embed.weight"}
        with contextlib.suppress(ArealError):
            late.write(rest)
        with contextlib.suppress(ArealError):
            late.finish()
        unreadable(bench, bench.transport(), offer, "a released version whose sender finished late")
        unreadable(bench, bench.transport(), following, "the next version, while only the late sender has finished")
        sink.write({name: tensor for name, tensor in plain(2).items() if name != "embed.weight"})
        sink.finish()
        with contextlib.suppress(ArealError):
            late.abort()
        same(plain(2), bench.receive(bench.transport(), following), "the version after a late sender")
        controller.release(following)


@check("transport.sink.stale", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def sink_stale(bench: TransportBench) -> None:
    """A sink made for a released offer is refused with an ArealError, and spoils nothing that is open."""
    for used in (False, True):
        controller = bench.transport()
        stale = bench.travelled(controller.open(1))
        if used:
            bench.send(bench.transport(), stale, plain(1))
        controller.release(stale)
        offer = bench.sent(controller, plain(2), version=2)
        for again in (1, 2):
            sending = partial(bench.send, bench.transport(), stale, plain(3))
            raises(ArealError, "sending to a released offer", sending)
            same(plain(2), bench.receive(bench.transport(), offer), f"the open version, after {again} stale senders")
            unreadable(bench, bench.transport(), stale, "the released version")
        controller.release(offer)


def _layers(seed: int) -> dict[str, Tensor]:
    return {f"layers.{number}": noise((600,), "float32", 50 * seed + number) for number in range(6)}
