"""Tensors around every size at which a transport goes another way arrive whole, and so do their neighbours.

Knows: buckets as a transport asks for them, a megabyte, and sizes an adapter declares (`Adapter.thresholds`).
Does not know: how bytes travel.
"""

from __future__ import annotations

from torch import Tensor

from areal_conformance.benches.base import around
from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import noise, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.bytes import round_trip

_MEGABYTE = 1 << 20
_BUCKET = 1 << 16
"""A transport that asks for larger buckets than this, where it could have small ones, is not sent each size of them."""


@check("transport.threshold.bytes", level=Level.SINGLE, law=7, spec="weights", deadline_s=120.0)
def sizes(bench: TransportBench) -> None:
    """A tensor one byte short of a bucket or a megabyte, as large, one larger, or twice, arrives, and what follows."""
    asked = bench.transport(small_buckets=True)
    bucket = bench.within(lambda: asked.sink(asked.open(9)).bucket_bytes)
    small = around(bucket) if 2 <= bucket <= _BUCKET else ()
    with bench.crossing("bytes", _MEGABYTE) as declared:
        for size in sorted({*small, *declared}):
            round_trip(bench, {"only": _of(size)}, f"one tensor of {size} bytes", small_buckets=size in small)
        for named, few in ((small, True), (declared, False)):
            together: dict[str, Tensor] = {}
            for size in named:
                together |= {f"t.{size}": _of(size), f"n.{size}": noise((3,), "float32", size)}
            round_trip(bench, together, f"tensors of {named} bytes with small ones between", small_buckets=few)


def _of(size: int) -> Tensor:
    return sized(size, 1, size % 997)["part.0"]
