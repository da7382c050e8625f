"""Processes die, files are cut and bits flip: an error or other fingerprints, never silence, never a hang.

Knows: the faults, and what must be true after them.
Does not know: where a transport keeps its bytes; those that hide them offer faults of their own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_footprint import bytes_under, flip, places, stores, under
from areal_conformance.benches.transport_tensors import noise, plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import arrives, same, unreadable
from areal_conformance.checks.transport.processes import refused, well
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.contract.errors import ArealError, FingerprintMismatch, WeightSyncError
from areal_core.contract.weights import Offer, WeightTransport
from areal_core.weights.coverage import compare

_POSITIONS = 48
rule = partial(check, level=Level.FAULTS, law=7, spec="weights", unless=("streams",))


@rule("transport.fault.flip")
def flipped(bench: TransportBench) -> None:
    """One bit that flips after a tensor was sent shows in its fingerprint, or is an error."""
    tensors = {name: noise((512,), "uint8", seed) for seed, name in enumerate(("first", "second", "third"))}
    controller = bench.transport()
    offer = controller.open(1)
    sent = bench.send(bench.transport(), offer, tensors)
    marker = bytes(tensors["second"].tolist())
    for path in stores(offer, bench.temporary):
        place = path.read_bytes().find(marker)
        if place >= 0:
            flip(path, place + 300)
            break
    else:
        with bench.suffering(bench.fault(controller, "flip")):
            pass
    try:
        received = bench.receive(bench.transport(), offer)
        compare(sent, received.receipt(), "the receiver")
    except FingerprintMismatch as error:
        expect("second" in str(error), f"the tensor that differs is 'second', the error says {error}")
    except WeightSyncError:
        pass  # the transport noticed it itself
    else:
        raise Violation("a stored bit flipped, yet the receiver holds what was sent: it read something else")
    controller.release(offer)


@rule("transport.fault.anywhere", deadline_s=120.0)
def anywhere(bench: TransportBench) -> None:
    """A bit that flips anywhere in what is stored, header and manifest too, gives all tensors or an ArealError."""
    tensors = plain(1)
    controller = bench.transport(small_buckets=True)
    offer = controller.open(1)
    sent = bench.send(bench.transport(small_buckets=True), offer, tensors, tied={"head": "embed.weight"})
    files = stores(offer, bench.temporary)
    if not files:
        bench.notes.append("the version lies in no file a bit of which could flip")
    for path in files:
        size = path.stat().st_size
        near = range(min(size, _POSITIONS // 2))
        far = range(len(near), size, max(1, size // _POSITIONS))
        for position in (*near, *far):
            for bit in (1, 64):
                if not flip(path, position, bit):
                    continue
                what = f"bit {bit} of byte {position} of {path.name} flipped"
                try:
                    received = bench.receive(bench.transport(small_buckets=True), offer)
                except ArealError:
                    pass
                except Exception as error:
                    told = f"expected an ArealError, got {type(error).__name__}: {error}"
                    raise Violation(f"{what}: {told}") from error
                else:
                    came, names = list(received.tensors), [spec.name for spec in received.manifest.tensors]
                    expect(came == names, f"{what}: of {len(names)} tensors {len(came)} came, without an error")
                flip(path, position, bit)
    same(tensors, bench.receive(bench.transport(), offer), "after every bit was put back")
    expect(sent.version == 1, "the receipt changed")
    controller.release(offer)


@rule("transport.fault.truncated", deadline_s=240.0)
def truncated(bench: TransportBench) -> None:
    """A version of which a part is cut off or gone cannot be read: an error, no crash, no missing tensor."""
    controller = bench.transport(small_buckets=True)
    receiver = bench.peer("receiver")
    version = 0
    while True:
        version += 1
        offer = bench.sent(controller, plain(version), version=version, sender=bench.transport(small_buckets=True))
        files = stores(offer, bench.temporary)
        if not files:
            _cut_inside(bench, controller, offer)
            return
        cuts = [(path, cut) for path in files for cut in ("gone", "empty", "half", "one byte")]
        if version > len(cuts):
            break
        path, cut = cuts[version - 1]
        if _cut(path, cut):
            answer = receiver.ask("receive", offer=offer)
            refused(answer, f"{path.name} is {cut}", "WeightSyncError", "StorageError")
        controller.release(offer)
        if not receiver.alive:
            receiver = bench.peer("receiver")
    same(plain(version), bench.receive(bench.transport(), offer), "the version after all that")
    controller.release(offer)


@rule("transport.fault.sender_killed", law=9, deadline_s=240.0)
def sender_killed(bench: TransportBench) -> None:
    """A sender killed half way leaves a version that cannot be read and can be released; the next one works."""
    sender = bench.peer("sender")
    controller, receiver = bench.transport(), bench.transport()
    offer = controller.open(1)
    known = places(offer)
    well(sender.ask("begin", offer=offer, name="plain", seed=1), "sending the first half")
    sender.kill()
    unreadable(bench, receiver, offer, "a version whose sender was killed")
    bench.within(lambda: controller.release(offer), "releasing what a dead process wrote")
    unreadable(bench, receiver, offer, "a version whose sender was killed, released")
    following = controller.open(1)
    well(bench.peer("sender").ask("send", offer=following, name="plain", seed=2), "sending again")
    same(plain(2), bench.receive(receiver, following), "the version after a killed sender")
    controller.release(following)
    _swept(bench, known, "after a killed sender, release and close")


@rule("transport.fault.receiver_killed", law=9, deadline_s=240.0)
def receiver_killed(bench: TransportBench) -> None:
    """A receiver killed while it reads costs nobody else anything; release and close leave nothing."""
    controller, receiver = bench.transport(small_buckets=True), bench.transport(small_buckets=True)
    peer = bench.peer("receiver")
    offer = bench.sent(controller, plain(1), sender=bench.transport(small_buckets=True))
    known = places(offer)
    well(peer.ask("read_some", offer=offer), "reading the first bucket")
    peer.kill()
    same(plain(1), bench.receive(receiver, offer), "after another receiver was killed")
    bench.within(lambda: controller.release(offer), "releasing what a dead process read")
    unreadable(bench, receiver, offer, "a version released after one of its receivers was killed")
    arrives(bench, controller, plain(2), "the version after a killed receiver", receiver=receiver)
    _swept(bench, known, "after a killed receiver, release and close")


@rule("transport.fault.controller_killed", law=10, deadline_s=240.0)
def controller_killed(bench: TransportBench) -> None:
    """What a killed controller leaves is gone once its workers have closed or the next controller has been and gone."""
    controller = bench.peer("sender")
    known: set[Path] = set()
    for version in (1, 2):
        offer = Offer(**well(controller.ask("open", version=version), "opening"))
        known |= places(offer)
        well(controller.ask("send" if version == 1 else "begin", offer=offer, name="plain", seed=1), "sending")
    reader = bench.peer("receiver")
    controller.kill()
    answer = reader.ask("receive", offer=offer)
    refused(answer, "a version whose controller was killed before it was finished", "WeightSyncError")
    arrives(bench, bench.transport(), plain(3), "the next controller's version", version=1)
    well(reader.ask("reset"), "the receiver's close")
    _swept(bench, known, "after a killed controller and the life of the next one")


@rule("transport.fault.no_room", deadline_s=240.0)
def no_room(bench: TransportBench) -> None:
    """Room that ends in the middle of a version is a StorageError or ResourceError; nothing of it stays."""
    sender = bench.peer("sender")
    controller = bench.transport()
    offer = controller.open(1)
    answer = sender.ask("write_large", offer=offer, num_bytes=400_000, limit=100_000)
    if answer:
        large = bench.receive(bench.transport(), offer).tensors.get("large")
        arrived = large is not None and large.numel() == 400_000 and bool((large == 1).all())
        expect(arrived, "400 kB were sent where there is room for 100 kB, without an error, and did not arrive")
        bench.notes.append("400 kB were sent by a process that may write files of 100 kB: it writes none")
    else:
        refused(answer, "files may not grow beyond 100 kB, 400 kB were sent", "StorageError", "ResourceError")
        unreadable(bench, bench.transport(), offer, "a version for which there was no room")
    controller.release(offer)
    left = bytes_under(bench.temporary)
    expect(left < 4096, f"after the release of a version for which there was no room {left} bytes of files are left")
    following = controller.open(2)
    well(sender.ask("send", offer=following, name="plain", seed=2), "sending the next version")
    same(plain(2), bench.receive(bench.transport(), following), "the version after one without room")
    controller.release(following)


def _swept(bench: TransportBench, known: set[Path], when: str) -> None:
    """Close every end, and expect nothing to be left."""
    for end in bench.forget():
        bench.within(end.close, "close")

    def left() -> list[str]:
        inside = [str(path.relative_to(bench.temporary)) for path in under(bench.temporary)]
        return inside + [str(path) for path in known if path.exists()]

    if not bench.becomes(lambda: not left()):
        raise Violation(f"{when}, there must be nothing left; there is {', '.join(left()[:5])}", law=10)


def _cut(path: Path, how: str) -> bool:
    """Cut a file; tell whether it could be."""
    if how == "gone":
        if str(path).startswith("/proc/"):
            return False
        path.unlink()
        return True
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate({"empty": 0, "half": size // 2, "one byte": size - 1}[how])
    return True


def _cut_inside(bench: TransportBench, controller: WeightTransport, offer: Offer) -> None:
    try:
        fault = bench.fault(controller, "truncate")
    except Inconclusive as error:
        raise Inconclusive(f"the version lies in no file, and {error}") from error
    with bench.suffering(fault):
        unreadable(bench, bench.transport(), offer, "a part was cut off")
    controller.release(offer)
