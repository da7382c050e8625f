"""Controller, sender and receivers in processes of their own, with nothing between them but the offer.

Knows: who does what in which process, and a reader that writes where it must not.
Does not know: how bytes travel; a reader that dies of its own write has done no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_ends import receipt_of
from areal_conformance.benches.transport_process import Answer
from areal_conformance.benches.transport_tensors import SETS, plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, unreadable
from areal_conformance.outcome import Violation, expect
from areal_core.contract.weights import Offer

rule = partial(check, level=Level.DISTRIBUTED, law=7, spec="weights", unless=("streams",), deadline_s=240.0)


def well(answer: Answer, what: str) -> Mapping[str, Any]:  # Any: JSON
    """Return what a peer answered; expect that it succeeded."""
    if not answer:
        raise Violation(f"{what}: {answer.error}", law=9 if answer.died else None)
    return answer.value


def refused(answer: Answer, what: str, *kinds: str) -> None:
    """Expect that a peer's call failed with one of these errors."""
    expect(not answer, f"{what}: expected {' or '.join(kinds)}, and it succeeded")
    if answer.died:
        raise Violation(f"{what}: expected {' or '.join(kinds)}, but {answer.error}", law=9)
    expect(set(kinds) & set(answer.kinds), f"{what}: expected {' or '.join(kinds)}, got {answer.error}")


def same_there(sent: Mapping[str, Tensor], got: Mapping[str, Any], where: str) -> None:
    """Expect that a receiver in another process holds these tensors."""
    wanted = dict(receipt_of(sent, 0).fingerprints)
    expect(got["names"] == list(sent), f"{where}: expected {list(sent)}, got {got['names']}")
    wrong = [name for name, digits in wanted.items() if got["fingerprints"][name] != digits]
    expect(not wrong, f"{where}: the bytes of {wrong[:5]} differ")


@rule("transport.process.crosses")
def crosses(bench: TransportBench) -> None:
    """A version opened here and sent by another process is read here and in a third, update after update."""
    sender, receiver = bench.peer("sender"), bench.peer("receiver")
    controller = bench.transport()
    for version, kind in enumerate(("plain", "dtypes", "plain", "shapes"), 1):
        tensors = SETS[kind](version)
        offer = controller.open(version)
        refused(receiver.ask("receive", offer=offer), "reading before it was sent", "WeightSyncError")
        receipt = well(sender.ask("send", offer=offer, name=kind, seed=version), "sending from another process")
        got = well(receiver.ask("receive", offer=offer), "receiving in another process")
        same_there(tensors, got, f"{kind}, version {version}")
        expect(got["version"] == version, f"expected version {version}, the receiver was told {got['version']}")
        alike = receipt["fingerprints"] == got["fingerprints"]
        expect(alike, f"the receipts of version {version} differ though the bytes are right")
        same(tensors, bench.receive(controller, offer), "received by the controller's process")
        controller.release(offer)
        refused(receiver.ask("receive", offer=offer), "reading after the release", "WeightSyncError")


@rule("transport.process.controller")
def controller_elsewhere(bench: TransportBench) -> None:
    """A controller in another process opens and releases what is sent and read here."""
    controller = bench.peer("sender")
    sender, receiver = bench.transport(), bench.transport()
    for version in (1, 2):
        offer = Offer(**well(controller.ask("open", version=version), "opening in another process"))
        unreadable(bench, receiver, offer, "a version opened elsewhere and not sent")
        bench.send(sender, offer, plain(version))
        same(plain(version), bench.receive(receiver, offer), "sent and received beside the controller")
        well(controller.ask("release", offer=offer), "releasing in another process")
        unreadable(bench, bench.transport(), offer, "a version released elsewhere")
    open_still = Offer(**well(controller.ask("open", version=3), "opening in another process"))
    bench.send(sender, open_still, plain(3))
    well(controller.ask("close"), "closing in another process")
    unreadable(bench, bench.transport(), open_still, "a version whose controller closed")


@rule("transport.process.receivers")
def receivers_apart(bench: TransportBench) -> None:
    """A receiver that closes its end, or is half way, does not stand in the way of one in another process."""
    first, second = bench.peer("sender"), bench.peer("receiver")
    controller = bench.transport(small_buckets=True)
    offer = bench.sent(controller, plain(1), sender=bench.transport(small_buckets=True))
    well(first.ask("read_some", offer=offer), "reading the first bucket")
    same_there(plain(1), well(second.ask("receive", offer=offer), "reading beside it"), "beside a slow receiver")
    well(first.ask("close"), "a receiver's close")
    same_there(plain(1), well(second.ask("receive", offer=offer), "reading after it"), "after a receiver closed")
    well(second.ask("close"), "the other receiver's close")
    same(plain(1), bench.receive(bench.transport(), offer), "after both receivers closed")
    controller.release(offer)


@rule("transport.process.ends")
def process_ends(bench: TransportBench) -> None:
    """A process that had an end of its own, and ends in order while the controller lives, takes nothing along."""
    leaving, controller = bench.peer("leaving"), bench.transport()
    sender = bench.transport()
    first, second = (bench.sent(controller, plain(number), version=number, sender=sender) for number in (1, 2))
    same_there(plain(1), well(leaving.ask("receive", offer=first), "reading"), "before the process ends")
    leaving.end()
    for number, offer in ((1, first), (2, second)):
        same(
            plain(number),
            bench.receive(bench.transport(), offer),
            f"version {number}, after a receiver's process ended",
        )
    third = bench.sent(controller, plain(3), version=3, sender=sender)
    same(plain(3), bench.receive(bench.transport(), third), "a version that is sent after a receiver's process ended")
    for offer in (first, second, third):
        controller.release(offer)


@check("transport.reader.writes", level=Level.DISTRIBUTED, law=7, spec="weights", unless=("streams",), deadline_s=240.0)
def reader_writes(bench: TransportBench) -> None:
    """A reader that writes into what it was handed changes nothing for others, for later reads, or later versions."""
    controller, sender, scribbler = bench.transport(), bench.transport(), bench.peer("scribbler")
    for version, kind in enumerate(("plain", "plain", "dtypes"), 1):
        tensors = SETS[kind](version)
        offer = bench.sent(controller, tensors, version=version, sender=sender)
        if scribbler.alive and scribbler.ask("scribble", offer=offer).died:
            bench.notes.append(f"version {version}: a reader that wrote into a tensor ended")
        where = f"{kind}, version {version}, after another reader wrote into its tensors, read by"
        same(tensors, bench.receive(bench.transport(), offer), f"{where} this process")
        got = well(bench.peer("receiver").ask("receive", offer=offer), where)
        same_there(tensors, got, f"{where} a third process")
        if scribbler.alive:
            got = well(scribbler.ask("receive", offer=offer), where)
            same_there(tensors, got, f"{where} the process that wrote, anew")
        controller.release(offer)
