"""Any order of requests, updates, pauses and cancellations (`machines.versions`).

Knows: how many sequences are played.
Does not know: the operations.
"""

from __future__ import annotations

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.machines import versions

SEQUENCES = 60
NEEDED = ("weights.staged", "weights.in_flight", "pause.keep", "pause.abort")


@check("infer.versions.machine", level=Level.LOOP, law=1, spec="infer#weights", requires=NEEDED, deadline_s=120.0)
async def machine(bench: InferBench) -> None:
    """Whatever the order of requests, updates, pauses and cancellations: every stamp is true, nothing is lost."""
    async with bench.engine(max_concurrent=3) as engine:
        for operations in versions.sequences(SEQUENCES):
            await versions.VersionsMachine(bench, engine).play(operations)


@check("infer.versions.traces", level=Level.SINGLE, law=1, spec="infer#weights", requires=NEEDED)
async def traces(bench: InferBench) -> None:
    """Orders of calls that once showed a fault, each played as it was found."""
    async with bench.engine(max_concurrent=3) as engine:
        for name, operations in versions.traces().items():
            bench.notes.append(name)
            await versions.VersionsMachine(bench, engine).play(operations)
    bench.notes.clear()
