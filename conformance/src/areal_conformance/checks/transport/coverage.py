"""Exactly what was announced, once, or nothing at all.

Knows: the ways in which a sender can be wrong.
Does not know: how bytes travel.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import plain, shapes
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import unreadable
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, CoverageError, WeightSyncError
from areal_core.contract.weights import Receipt, WeightManifest, WeightSink
from areal_core.weights.specs import manifest_of


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
        expect(
            isinstance(ended.received[0], WeightSyncError),
            f"{what}: the receiver must get WeightSyncError, it got {ended.received[0]!r:.300}",
        )
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
