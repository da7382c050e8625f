"""What is said of the bytes is true, names, ties, order, receipts, the offer; what is announced comes once, or nothing.

Knows: the manifest, the receipt, the offer, and the ways in which a sender can be wrong.
Does not know: how bytes travel.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_ends import receipt_of
from areal_conformance.benches.transport_tensors import SETS, plain, shapes
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, unreadable
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.errors import ArealError, CoverageError, WeightSyncError
from areal_core.contract.weights import Offer, Receipt, WeightManifest, WeightSink
from areal_core.weights.tensors import manifest_of

_OFFER_BYTES = 16 << 10
_CLOCKS_APART_S = 0.1
"""What another clock than the check's may add to a duration."""


@check("transport.names.any", level=Level.SINGLE, law=7, spec="weights")
def names(bench: TransportBench) -> None:
    """A name is data: slashes, dots, spaces, case, length and foreign letters arrive as they are and escape nowhere."""
    for small in (False, True):
        transport = bench.transport(small_buckets=small)
        offer = transport.open(1)
        tensors = SETS["names"](2)
        _, (received,) = bench.carry(transport, transport, [bench.transport()], offer, tensors)
        same(tensors, received, "awkward names")
        announced = [spec.name for spec in received.manifest.tensors]
        expect(announced == list(tensors), f"expected the names {list(tensors)}, the manifest has {announced}")
        transport.release(offer)
    stray = [path.name for path in bench.folder.iterdir() if path.name != bench.temporary.name]
    expect(not stray, f"a tensor's name became a path outside the transport's own folder: {stray}")


@check("transport.manifest.whole", level=Level.SINGLE, law=7, spec="weights")
def manifest_whole(bench: TransportBench) -> None:
    """The receiver's manifest is the sender's: version, every specification in sending order, and the ties."""
    for seed, kind in enumerate(("plain", "shapes", "dtypes")):
        for backwards in (False, True):
            items = list(SETS[kind](seed).items())
            tensors = dict(reversed(items)) if backwards else dict(items)
            first, last = next(iter(tensors)), next(reversed(tensors))
            tied = {"lm_head.weight": first, "zz/tied": last, "again": first} if seed else {}
            transport = bench.transport(small_buckets=bool(seed))
            offer = transport.open(40 + seed)
            sent = manifest_of(tensors.items(), version=40 + seed, tied=tied)
            _, (received,) = bench.carry(transport, transport, [bench.transport()], offer, tensors, tied=tied)
            got = received.manifest
            expect(got.version == sent.version, f"expected version {sent.version} in the manifest, got {got.version}")
            told = f"sent {sent.tensors[:3]}..., got {tuple(got.tensors)[:3]}..."
            counts = f"({len(sent.tensors)} and {len(got.tensors)})"
            expect(tuple(got.tensors) == sent.tensors, f"the specifications differ: {told} {counts}")
            expect(dict(got.tied) == tied, f"expected the ties {tied}, got {dict(got.tied)}")
            transport.release(offer)


@check("transport.receipt.true", level=Level.SINGLE, law=7, spec="weights")
def receipt_true(bench: TransportBench) -> None:
    """The sink's receipt holds version, bytes, seconds, and the fingerprint of every tensor and of nothing else."""
    for seed, kind in enumerate(SETS):
        tensors = SETS[kind](seed)
        transport = bench.transport(small_buckets=bool(seed % 2))
        offer = transport.open(seed + 1)
        tied = {"tied.to": next(iter(tensors))}
        began = time.perf_counter()
        receipt, _ = bench.carry(transport, transport, [bench.transport()], offer, tensors, tied=tied)
        took = time.perf_counter() - began
        wanted = receipt_of(tensors, seed + 1)
        expect(receipt.version == seed + 1, f"expected a receipt for version {seed + 1}, got {receipt.version}")
        sizes = f"the tensors have {wanted.num_bytes} bytes, the receipt says {receipt.num_bytes}"
        expect(receipt.num_bytes == wanted.num_bytes, f"{kind}: {sizes}")
        odd = sorted(receipt.fingerprints.keys() ^ wanted.fingerprints.keys())
        expect(not odd, f"{kind}: the receipt must name every sent tensor and no other; it differs in {odd[:5]}")
        wrong = [name for name, digits in wanted.fingerprints.items() if receipt.fingerprints[name] != digits]
        expect(not wrong, f"{kind}: the fingerprints of {wrong[:5]} are not those of the tensors sent")
        sane = math.isfinite(receipt.seconds) and receipt.seconds >= 0
        expect(sane, f"seconds must be a duration, got {receipt.seconds!r}")
        told = f"the receipt says {receipt.seconds:g} s of an update that took {took:g} s, receiving included"
        expect(receipt.seconds <= took + _CLOCKS_APART_S, told)
        transport.release(offer)


@check("transport.offer.plain", level=Level.SINGLE, law=7, spec="weights")
def offer_plain(bench: TransportBench) -> None:
    """An offer is small plain data that survives the codec, names this transport and its version, and never changes."""
    transport = bench.transport()
    offers = [transport.open(version) for version in (1, 2, 10**9)]
    told = [_json(offer) for offer in offers]
    for offer, version, text in zip(offers, (1, 2, 10**9), told, strict=True):
        name = bench.target.name
        expect(offer.transport == name, f"the offer names {offer.transport!r}; workers look it up under {name!r}")
        expect(offer.version == version, f"the offer of version {version} says version {offer.version}")
        for key, value in offer.location.items():
            odd = f"location[{key!r}] is a {type(value).__name__}; it must be a string or a number"
            expect(type(key) is str and type(value) in (str, int, bool), odd)
        expect(len(text) <= _OFFER_BYTES, f"the offer takes {len(text)} bytes; it travels to every participant")
        expect(bench.travelled(offer) == offer, f"the offer does not survive the codec: {offer}")
    expect(len(set(told)) == len(told), "offers open at once must lead to different places")
    bench.carry(transport, bench.transport(), [bench.transport()], offers[1], plain(1))
    expect(_json(offers[1]) == told[1], "an offer is complete when `open` returns: it changed while it was used")


@check("transport.offer.complete", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def offer_complete(bench: TransportBench) -> None:
    """Whoever got an offer when it was opened can use it, in any order of asking, through an end of its own."""
    controller, sender, early = bench.transport(), bench.transport(), bench.transport()
    offer = bench.travelled(controller.open(6))
    raises(ArealError, "reading an offer nobody wrote to", lambda: bench.receive(early, offer))
    bench.send(sender, offer, plain(6))
    same(plain(6), bench.receive(early, offer), "the end that asked too early")
    same(plain(6), bench.receive(bench.transport(), offer), "a new end")
    same(plain(6), bench.receive(controller, offer), "the controller's own end")
    controller.release(offer)


def _json(offer: Offer) -> str:
    try:
        return json.dumps(dict(offer.location), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise Violation(f"the offer's location is no plain data: {error}") from error


def refused(
    bench: TransportBench, what: str, *buckets: Mapping[str, Tensor], manifest: WeightManifest | None = None
) -> None:
    """Write the buckets, then finish; expect CoverageError at latest then, and nothing readable after it."""
    transport, sender = bench.transport(), bench.transport()
    offer = transport.open(3)
    sinks: list[WeightSink] = []

    def sending() -> Receipt:
        sinks.append(sender.sink(bench.travelled(offer)))
        sinks[0].begin(manifest or manifest_of(plain(3).items(), version=3))
        for bucket in buckets:
            sinks[0].write(bucket)
        return sinks[0].finish()

    if bench.streams:
        ended = bench.stream(transport, offer, sending, [bench.transport()])
        _is_refused(what, ended.sent)
        got = ended.received[0]
        expect(isinstance(got, WeightSyncError), f"{what}: the receiver must get WeightSyncError, it got {got!r:.300}")
    else:
        try:
            outcome: object = sending()
        except ArealError as error:
            outcome = error
        _is_refused(what, outcome)
        unreadable(bench, bench.transport(), offer, f"after {what}")
        sinks[0].abort()
        unreadable(bench, bench.transport(), offer, f"after {what} and abort")
    transport.release(offer)


def _is_refused(what: str, outcome: object) -> None:
    if not isinstance(outcome, BaseException):
        raise Violation(f"{what}: expected CoverageError, and it was taken")
    if not isinstance(outcome, CoverageError):
        raise Violation(f"{what}: expected CoverageError, got {type(outcome).__name__}: {outcome}") from outcome
    expect(outcome.what, f"{what}: the error must say which tensor")


@check("transport.coverage.unannounced", level=Level.SINGLE, law=7, spec="weights")
def unannounced(bench: TransportBench) -> None:
    """A tensor nobody announced is refused, first, last or beside announced ones."""
    tensors = plain(3)
    stranger = {"stranger": torch.ones(1)}
    refused(bench, "an unannounced tensor alone", stranger, tensors)
    refused(bench, "one beside announced ones", {**tensors, **stranger})
    refused(bench, "one after all announced ones", tensors, stranger)
    refused(bench, "an empty one", {"norm.weight.": torch.empty(0), **tensors})


@check("transport.coverage.shape", level=Level.SINGLE, law=7, spec="weights")
def shape(bench: TransportBench) -> None:
    """A tensor of another shape than announced is refused, also with as many elements."""
    tensors = plain(3)
    name = "layers.1.weight"
    for other in (tensors[name].t(), tensors[name].reshape(-1), tensors[name][:4], tensors[name][None]):
        refused(bench, f"shape {list(other.shape)} for [8, 24]", {**tensors, name: other})


@check("transport.coverage.dtype", level=Level.SINGLE, law=7, spec="weights")
def dtype(bench: TransportBench) -> None:
    """A tensor of another dtype than announced is refused, also one of equal width."""
    for kind in (torch.float64, torch.bfloat16, torch.int32):
        refused(bench, f"{kind} for float32", {**plain(3), "norm.weight": torch.ones(16, dtype=kind)})


@check("transport.coverage.twice", level=Level.SINGLE, law=7, spec="weights")
def twice(bench: TransportBench) -> None:
    """A tensor written twice is refused, at once or in the end, with equal bytes or with others."""
    tensors = plain(3)
    first = {"norm.weight": tensors["norm.weight"]}
    rest = {name: tensor for name, tensor in tensors.items() if name != "norm.weight"}
    for again in (first, {"norm.weight": torch.zeros(16)}):
        refused(bench, "a tensor again, last", tensors, again)
        refused(bench, "a tensor again, in the middle", first, again, rest)


@check("transport.coverage.missing", level=Level.SINGLE, law=7, spec="weights")
def missing(bench: TransportBench) -> None:
    """`finish` refuses a version of which an announced tensor never came: any one, the smallest, or all."""
    tensors, many = plain(3), shapes(3)
    for name in tensors:
        refused(bench, f"{name!r} missing", {other: tensor for other, tensor in tensors.items() if other != name})
    refused(bench, "everything missing")
    for name in ("scalar", "empty", "empty.columns", "last"):
        rest = {other: tensor for other, tensor in many.items() if other != name}
        refused(bench, f"{name!r} missing", rest, manifest=manifest_of(many.items(), version=3))


@check("transport.coverage.manifest", level=Level.SINGLE, law=7, spec="weights")
def manifest(bench: TransportBench) -> None:
    """A manifest that names a tensor twice, or ties a name to nothing that is sent, is refused."""
    good = manifest_of(plain(3).items(), version=3)
    for what, bad in (
        ("a name announced twice", attrs.evolve(good, tensors=(*good.tensors, good.tensors[0]))),
        ("a name tied to nothing", attrs.evolve(good, tied={"lm_head.weight": "nowhere"})),
        ("a name both sent and tied", attrs.evolve(good, tied={"norm.weight": "embed.weight"})),
    ):
        refused(bench, what, plain(3), manifest=bad)
