"""Options of an inference engine change what they say, and no output: its checks again with each variant.

Knows: which checks see most of an engine in little time.
Does not know: what an option means.
"""

from __future__ import annotations

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.varied import at_bounds, made_again, shown

_CHECKS = (
    "infer.output.logprobs",
    "infer.concurrent.alone",
    "infer.concurrent.more_than_slots",
    "infer.concurrent.shared_prompts",
    "infer.weights.back_and_forth",
)


@check("infer.options.checks", level=Level.SINGLE, law=1, spec="infer#start", deadline_s=240.0)
async def again(bench: InferBench) -> None:
    """With each variant's options outputs, crowds and updates are what they are without."""
    await made_again(bench, _CHECKS)


@check("infer.options.shown", level=Level.SINGLE, law=8, spec="infer#start", deadline_s=120.0)
async def effect(bench: InferBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, lambda: bench.engine(fresh=True))


@check("infer.options.bounds", level=Level.SINGLE, law=8, spec="infer#start")
def bounds(bench: InferBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before an engine is loaded."""
    at_bounds(bench)
