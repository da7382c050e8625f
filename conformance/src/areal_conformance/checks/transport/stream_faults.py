"""Processes at both ends of a stream: they meet across processes, and one that is killed is everybody's error.

Knows: who is killed when.
Does not know: how bytes travel.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.transport import PEER_S, TransportBench, expecting
from areal_conformance.benches.transport_ends import receive
from areal_conformance.benches.transport_tensors import SETS, plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same
from areal_conformance.checks.transport.processes import refused, same_there, well
from areal_conformance.checks.transport.streams import gave_up, works_again
from areal_conformance.outcome import expect
from areal_core.contract.weights import Offer
from areal_core.weights.tensors import manifest_of

rule = partial(
    check, level=Level.FAULTS, law=9, spec="weights#streams", requires=("streams",), since=(1, 1), deadline_s=240.0
)


@rule("transport.stream.crosses", level=Level.DISTRIBUTED, law=7)
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
        if isinstance(ended["here"], BaseException):
            raise ended["here"]
        same(tensors, ended["here"], f"{kind}, version {version}, received here")
        expect(receipt["fingerprints"] == got["fingerprints"], f"the receipts of version {version} differ")
        controller.release(offer)


@rule("transport.stream.receiver_killed")
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
    if isinstance(ended["sender"], BaseException):
        raise ended["sender"]
    peer.kill()

    def rest() -> object:
        sink.write(dict(list(tensors.items())[1:]))
        return sink.finish()

    outcome = bench.at_once({"sender": rest})["sender"]
    gave_up(outcome, "the sender", "after its receiver was killed in the middle")
    expect("receiver/doomed" in str(outcome), f"the error must name 'receiver/doomed', it says {outcome}")
    controller.release(offer)
    works_again(bench, controller, (sender, staying), "a killed receiver")


@rule("transport.stream.sender_killed")
def sender_killed(bench: TransportBench) -> None:
    """A sender killed in the middle is WeightSyncError for every receiver; another sender carries the next version."""
    peer = bench.peer("sender")
    controller, first, second = (bench.transport() for _ in range(3))
    offer = controller.open(1)
    offers = expecting(controller).expect(offer, ("first", "second"))

    def killed() -> None:
        well(peer.ask("begin", offer=offer, name="plain", seed=1), "sending the first half")
        peer.kill()

    ended = bench.at_once(
        {
            "sender": killed,
            "first": partial(receive, first, bench.travelled(offers[0])),
            "second": partial(receive, second, bench.travelled(offers[1])),
        },
        wait_s=PEER_S,
    )
    if isinstance(ended["sender"], BaseException):
        raise ended["sender"]
    for name in ("first", "second"):
        gave_up(ended[name], f"receiver {name}", "after the sender was killed in the middle")
    controller.release(offer)
    works_again(bench, controller, (bench.transport(), first, second), "a killed sender")


@rule("transport.stream.controller_killed")
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
