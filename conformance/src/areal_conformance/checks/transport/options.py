"""Options of a transport change what they say, and no byte: its checks again with each variant of the adapter.

Knows: which checks see most of a transport, its ends in one process and in several.
Does not know: what an option means.
"""

from __future__ import annotations

from areal_conformance.benches.transport import TransportBench
from areal_conformance.check import Level, check
from areal_conformance.varied import at_bounds, given, made_again, shown

_CHECKS = (
    "transport.bytes.dtypes",
    "transport.bytes.shapes",
    "transport.bytes.buckets",
    "transport.version.follow",
    "transport.abort.frees",
    "transport.close.clean",
    "transport.process.crosses",
    "transport.fault.controller_killed",
)


@check("transport.options.checks", level=Level.SINGLE, law=7, spec="weights", deadline_s=240.0)
async def again(bench: TransportBench) -> None:
    """With each variant's options bytes arrive, versions follow each other, and nothing is left."""
    await made_again(bench, _CHECKS)


@check("transport.options.shown", level=Level.SINGLE, law=8, spec="weights")
async def effect(bench: TransportBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, lambda: given(bench.transport()))


@check("transport.options.bounds", level=Level.SINGLE, law=8, spec="weights")
def bounds(bench: TransportBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before anything is built."""
    at_bounds(bench)
