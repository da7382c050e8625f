"""A transport that streams: whoever is named gets all of it at once, and one end that leaves is every end's error.

Knows: senders and receivers in threads of this process, and in processes that may be killed.
Does not know: how bytes travel, or how long an end waits for another; only that it is not for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from areal_conformance.benches.transport import ALONE_S, MOMENT_S, PEER_S, TransportBench, expecting
from areal_conformance.benches.transport_ends import Received, receive, send
from areal_conformance.benches.transport_tensors import SETS, large, nudged, plain, shapes, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import nothing_left, same, sent_until
from areal_conformance.checks.transport.processes import refused, same_there, well
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.errors import ArealError, WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.weights.tensors import manifest_of

rule = partial(check, level=Level.SINGLE, law=7, spec="weights#streams", requires=("streams",), since=(1, 1))
in_processes = partial(rule, level=Level.FAULTS, law=9, deadline_s=240.0)


def gave_up(outcome: object, who: str, when: str) -> None:
    """Expect that one end ended with WeightSyncError."""
    told = f"{when}, {who} must end with WeightSyncError; it ended with {type(outcome).__name__}: {outcome!s:.300}"
    expect(isinstance(outcome, WeightSyncError), told)


def works_again(bench: TransportBench, controller: WeightTransport, ends: Sequence[WeightTransport], when: str) -> None:
    """Expect that the same ends, the sender first, carry the next version."""
    offer = controller.open(90)
    receipt, received = bench.carry(controller, ends[0], ends[1:], offer, plain(90))
    for one in received:
        same(plain(90), one, f"the version after {when}")
        _one_receipt(receipt, one, f"the version after {when}")
    controller.release(offer)


@rule("transport.stream.everybody")
def everybody(bench: TransportBench) -> None:
    """Every receiver named gets every tensor, update after update, whether the fleet stays, shrinks, grows or turns."""
    controller, sender = bench.transport(small_buckets=True), bench.transport()
    fleet = [bench.transport() for _ in range(3)]
    steady = large(1)
    for version, who in enumerate(((0, 1), (0, 1), (0,), (0, 1, 2), (2, 1, 0), (1,), (1, 2)), 1):
        steady = nudged(steady, version)
        tensors = {**plain(version), **shapes(version), **steady}
        offer = controller.open(version)
        receipt, received = bench.carry(controller, sender, [fleet[number] for number in who], offer, tensors)
        for number, one in zip(who, received, strict=True):
            same(tensors, one, f"version {version}, receiver {number} of {who}")
            expect(one.manifest.version == version, f"expected version {version}, got {one.manifest.version}")
            _one_receipt(receipt, one, f"version {version}, receiver {number}")
        controller.release(offer)


@rule("transport.stream.holds")
def holds(bench: TransportBench) -> None:
    """A bucket stays as it came until the receiver asks for the next one, however far the sender has got."""
    controller, sender = bench.transport(small_buckets=True), bench.transport()
    fleet = [bench.transport() for _ in range(2)]
    tensors = sized(400_000, 5, 1)
    for count in (1, 2):
        offer = controller.open(count)
        sending = partial(send, sender, bench.travelled(offer), tensors)
        ended = bench.stream(controller, offer, sending, fleet[:count], moment_s=MOMENT_S)
        for number, one in enumerate(ended.all_well()[1]):
            same(tensors, one, f"receiver {number} of {count}, which took a moment over its first bucket")
        controller.release(offer)


@rule("transport.stream.alone", law=9)
def alone(bench: TransportBench) -> None:
    """An end whose peers never come ends with WeightSyncError that names who is missing; the next version works."""
    controller, sender, receiver, other = (bench.transport() for _ in range(4))
    names = ("receiver/here", "receiver/missing")
    for who in ("sender", "receiver", "sender and one receiver"):
        offer = controller.open(1)
        offers = expecting(controller).expect(offer, names)
        works: dict[str, Callable[[], Any]] = {}  # Any: a Receipt, or what was Received
        if "sender" in who:
            works["sender"] = partial(send, sender, bench.travelled(offer), plain(1))
        if "receiver" in who:
            works["receiver"] = partial(receive, receiver, bench.travelled(offers[0]))
        ended = bench.at_once(works)
        for name, outcome in ended.items():
            gave_up(outcome, name, f"{who} alone")
        if who == "sender and one receiver":
            told = f"the sender's error must name who never came, 'receiver/missing'; it says {ended['sender']}"
            expect("receiver/missing" in str(ended["sender"]), told)
        controller.release(offer)
        works_again(bench, controller, (sender, receiver, other), f"{who} alone")


@rule("transport.stream.named")
def named(bench: TransportBench) -> None:
    """`expect` refuses no receivers, one named twice and a released offer; an offer serves one receiver, once."""
    controller, sender, receiver = (bench.transport() for _ in range(3))
    offer = controller.open(1)
    released = controller.open(2)
    controller.release(released)
    for what, given, names in (
        ("no receivers", offer, ()),
        ("a receiver named twice", offer, ("one", "one")),
        ("a released offer", released, ("one",)),
    ):
        raises(WeightSyncError, f"`expect` of {what}", partial(expecting(controller).expect, given, names))
    offers = [bench.travelled(own) for own in expecting(controller).expect(offer, ("one", "two"))]
    expect(len({str(dict(own.location)) for own in offers}) == 2, "two receivers were given the same offer")
    for own in offers:
        expect(own.version == 1 and own.transport == bench.target.name, f"a receiver's offer says {own}")
    controller.release(offer)
    offer = controller.open(3)
    (own,) = (bench.travelled(one) for one in expecting(controller).expect(offer, ("one",)))
    ended = bench.at_once(
        {"sender": partial(send, sender, bench.travelled(offer), plain(3)), "receiver": partial(receive, receiver, own)}
    )
    same(plain(3), _well(ended["receiver"], "the receiver"), "the first reading")
    again = bench.at_once({"receiver": partial(receive, receiver, own), "sender's": partial(receive, receiver, offer)})
    gave_up(again["receiver"], "a second reading of a receiver's offer", "after the first")
    gave_up(again["sender's"], "a reading of the sender's offer", "at any time")
    controller.release(offer)


@rule("transport.stream.sender_stops")
def sender_stops(bench: TransportBench) -> None:
    """A sender that aborts, at any stage, is WeightSyncError for every receiver, though it has every byte."""
    controller, sender, first, second = (bench.transport() for _ in range(4))
    tensors = plain(1)
    for stage in ("made", "begun", "half", "written"):
        offer = controller.open(1)

        def sending(offer: Offer = offer, stage: str = stage) -> Any:  # Any: it gives no receipt
            sink = sent_until(bench, sender, offer, tensors, stage)
            sink.abort()
            sink.abort()

        ended = bench.stream(controller, offer, sending, [first, second])
        expect(ended.sent is None, f"an abort when {stage} must not raise, it raised {ended.sent!r:.200}")
        for number, outcome in enumerate(ended.received):
            gave_up(outcome, f"receiver {number}", f"after the sender aborted when {stage}")
        controller.release(offer)
        works_again(bench, controller, (sender, first, second), f"an abort when {stage}")


@rule("transport.stream.receiver_leaves", law=9)
def receiver_leaves(bench: TransportBench) -> None:
    """A receiver that closes its source before `buckets` has ended is WeightSyncError for all; the sender names it."""
    controller, sender, staying, leaving = (bench.transport(small_buckets=True) for _ in range(4))
    tensors, unnamed = sized(8_000_000, 16, 1), list[str]()
    for how in ("unread", "announced", "half", "half", "every bucket, not the end"):
        offer = controller.open(1)
        offers = [bench.travelled(own) for own in expecting(controller).expect(offer, ("staying", "leaving"))]

        def leave(own: Offer = offers[1], how: str = how) -> None:
            source = leaving.source(own)
            if how != "unread":
                expect(source.manifest.version == 1, "the manifest is of another version")
            reading, left = iter(source.buckets()), {"half": 1, "every bucket, not the end": len(tensors)}.get(how, 0)
            while left > 0:
                left -= len(next(reading))
            source.close()
            source.close()
            if isinstance(reading, Generator):
                reading.close()  # as a loop does that is broken off

        ended = bench.at_once(
            {
                "sender": partial(send, sender, bench.travelled(offer), tensors),
                "the other receiver": partial(receive, staying, offers[0]),
                "leaving": leave,
            }
        )
        expect(ended.pop("leaving") is None, f"closing a source, {how}, must not raise")
        for name, outcome in ended.items():
            gave_up(outcome, name, f"after a receiver left, {how}")
        if not _names(ended["sender"], "leaving", "staying"):
            unnamed.append(f"after the receiver 'leaving' left, {how}: {ended['sender']}")
        controller.release(offer)
        works_again(bench, controller, (sender, staying, leaving), f"a receiver left, {how}")
    expect(len(unnamed) < 2, f"the sender's error must say who left; it says, {'; '.join(unnamed)}")  # once: too busy


def _names(error: ArealError, who: str, other: str) -> bool:
    """Tell whether an error names one of two, and not only both among those who took part."""
    return who in error.why or (who in error.what and other not in error.what)


@rule("transport.stream.released", law=9)
def released(bench: TransportBench) -> None:
    """`release` ends a sender and a receiver that wait, at once and not at their timeout; late ones are refused."""
    for who in ("sender", "receiver"):
        controller, sender, receiver = (bench.transport() for _ in range(3))
        offer = controller.open(1)
        offers = [bench.travelled(own) for own in expecting(controller).expect(offer, ("one", "two"))]
        waiting: dict[str, Callable[[], Any]] = {  # Any: what each end gives
            "sender": partial(send, sender, bench.travelled(offer), plain(1)),
            "receiver": partial(receive, receiver, offers[0]),
        }

        def release(end: Offer = offer, controller: WeightTransport = controller) -> float:
            time.sleep(ALONE_S / 10)
            controller.release(end)
            controller.release(end)
            return time.monotonic()

        def timed(work: Callable[[], Any]) -> tuple[object, float]:
            try:
                return work(), time.monotonic()
            except Exception as error:
                return error, time.monotonic()

        deadline = bench.deadline(ALONE_S / 2)
        ended = bench.at_once({"release": release, who: partial(timed, waiting[who])})
        outcome, when = _well(ended[who], who)
        gave_up(outcome, f"a {who} that waits", "after `release`")
        passed = when - ended["release"]
        if passed > deadline.limit_s and not deadline.left():
            raise deadline.late(f"a {who} that waited ended {passed:.1f} s after `release`; it must not wait on")
        for name, work in waiting.items():
            gave_up(bench.at_once({name: work})[name], f"a {name} that comes late", "after `release`")
        works_again(bench, controller, (sender, receiver, bench.transport()), f"a release that ended a {who}")


@rule("transport.stream.clean", law=10)
def clean(bench: TransportBench) -> None:
    """`close` leaves nothing, whatever was carried or given up; twenty updates hold no more than three did."""
    works_again(bench, bench.transport(), [bench.transport(), bench.transport()], "nothing at all")
    for end in bench.forget():  # what libraries of a process keep from their first use on is not looked at
        end.close()
    before = bench.look()
    controller, sender, receiver = (bench.transport() for _ in range(3))
    sizes: list[int] = []
    for version in range(1, 21):
        offer = controller.open(version)
        bench.carry(controller, sender, [receiver], offer, plain(version))
        controller.release(offer)
        if version == 10:
            given_up = controller.open(100)
            expecting(controller).expect(given_up, ("nobody",))
            sent_until(bench, sender, given_up, {}, "made").abort()
            controller.release(given_up)
        sizes.append(bench.look().size)
    enough = bench.becomes(lambda: bench.look().size <= sizes[2] + 2)
    expect(enough, f"after 3 updates the process held {sizes[2]} things, after 20 it holds {bench.look().size}")
    for end in bench.forget():
        for _ in range(2):
            bench.within(end.close, "close")
    nothing_left(bench, before, (), "after everyone closed")


@in_processes("transport.stream.crosses", level=Level.DISTRIBUTED, law=7)
def crosses(bench: TransportBench) -> None:
    """A version opened here and sent by another process is received here and in a third, update after update."""
    sender, receiver = bench.peer("sender"), bench.peer("receiver")
    controller, here = bench.transport(), bench.transport()
    for version, kind in enumerate(("plain", "dtypes", "plain", "shapes"), 1):
        tensors = SETS[kind](version)
        offer = controller.open(version)
        there, mine = expecting(controller).expect(offer, ("there", "here"))
        ended = bench.at_once(
            {
                "sender": partial(sender.ask, "send", offer=offer, name=kind, seed=version),
                "there": partial(receiver.ask, "receive", offer=there),
                "here": partial(receive, here, bench.travelled(mine)),
            },
            wait_s=PEER_S,
        )
        receipt, got = well(ended["sender"], "sending from another process"), well(ended["there"], "receiving there")
        same_there(tensors, got, f"{kind}, version {version}")
        same(tensors, _well(ended["here"], "the receiver here"), f"{kind}, version {version}, received here")
        expect(receipt["fingerprints"] == got["fingerprints"], f"the receipts of version {version} differ")
        controller.release(offer)


@in_processes("transport.stream.receiver_killed")
def receiver_killed(bench: TransportBench) -> None:
    """A receiver killed in the middle is WeightSyncError for the sender, which names it; those left get the next."""
    controller, sender, staying = bench.transport(small_buckets=True), bench.transport(), bench.transport()
    peer = bench.peer("receiver")
    offer = controller.open(1)
    (own,) = expecting(controller).expect(offer, ("receiver/doomed",))
    tensors = plain(1)
    sink = sender.sink(bench.travelled(offer))

    def first() -> None:
        sink.begin(manifest_of(tensors.items(), version=1))
        sink.write(dict(list(tensors.items())[:1]))

    ended = bench.at_once({"sender": first, "receiver": partial(peer.ask, "read_some", offer=own)}, wait_s=PEER_S)
    well(ended["receiver"], "reading the first bucket")
    _well(ended["sender"], "the sender")
    peer.kill()

    def rest() -> object:
        sink.write(dict(list(tensors.items())[1:]))
        return sink.finish()

    outcome = bench.at_once({"sender": rest})["sender"]
    gave_up(outcome, "the sender", "after its receiver was killed in the middle")
    expect("receiver/doomed" in str(outcome), f"the error must name 'receiver/doomed', it says {outcome}")
    controller.release(offer)
    works_again(bench, controller, (sender, staying), "a killed receiver")


@in_processes("transport.stream.sender_killed")
def sender_killed(bench: TransportBench) -> None:
    """A sender killed in the middle is WeightSyncError for every receiver; another sender carries the next version."""
    peer = bench.peer("sender")
    controller, first, second = (bench.transport() for _ in range(3))
    offer = controller.open(1)
    offers = expecting(controller).expect(offer, ("first", "second"))

    def killed() -> None:
        well(peer.ask("begin", offer=offer, name="plain", seed=1), "sending the first half")
        peer.kill()

    works: dict[str, Callable[[], Any]] = {"sender": killed}  # Any: nothing, or what was Received
    for name, end, own in zip(("first", "second"), (first, second), offers, strict=True):
        works[name] = partial(receive, end, bench.travelled(own))
    ended = bench.at_once(works, wait_s=PEER_S)
    _well(ended["sender"], "the sender")
    for name in ("first", "second"):
        gave_up(ended[name], f"receiver {name}", "after the sender was killed in the middle")
    controller.release(offer)
    works_again(bench, controller, (bench.transport(), first, second), "a killed sender")


@in_processes("transport.stream.controller_killed")
def controller_killed(bench: TransportBench) -> None:
    """Ends that come after their controller was killed get WeightSyncError, and serve the next controller."""
    peer = bench.peer("sender")
    sender, receiver, following = (bench.transport() for _ in range(3))
    offer = Offer(**well(peer.ask("open", version=1), "opening in another process"))
    peer.kill()
    outcome = bench.at_once({"receiver": partial(receive, receiver, offer)}, wait_s=PEER_S)["receiver"]
    gave_up(outcome, "a receiver", "after the controller was killed")
    answer = bench.peer("receiver").ask("send", offer=offer, name="plain", seed=1)
    refused(answer, "sending after the controller was killed", "WeightSyncError")
    works_again(bench, following, (sender, receiver), "a killed controller")


def _one_receipt(receipt: Receipt, received: Received, where: str) -> None:
    alike = dict(receipt.fingerprints) == dict(received.receipt().fingerprints)
    expect(alike, f"{where}: the receipts of sender and receiver differ")


def _well(outcome: Any, who: str) -> Any:  # Any: whatever the end gives
    """Return how an end ended; raise its exception."""
    if isinstance(outcome, ArealError):
        raise Violation(f"{who}: {outcome}") from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
