"""Options of a workflow change what they say: its checks again with each variant of the adapter.

Knows: which checks see that an episode holds what was generated.
Does not know: what an option means.
"""

from __future__ import annotations

from areal_conformance.benches.workflow import WorkflowBench
from areal_conformance.check import Level, check
from areal_conformance.varied import at_bounds, given, made_again, shown

_CHECKS = (
    "workflow.tokens.as_sampled",
    "workflow.tokens.prompt",
    "workflow.rows.own_prompt",
    "workflow.rows.unfit",
    "workflow.reward.recorded",
    "workflow.reward.told_all",
    "workflow.company.at_once",
)


@check("workflow.options.checks", level=Level.SINGLE, law=1, spec="workflow", deadline_s=120.0)
async def again(bench: WorkflowBench) -> None:
    """With each variant's options episodes hold what was asked, generated and rewarded."""
    await made_again(bench, _CHECKS)


@check("workflow.options.shown", level=Level.SINGLE, law=8, spec="workflow")
async def effect(bench: WorkflowBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, lambda: given(bench.fresh()))


@check("workflow.options.bounds", level=Level.SINGLE, law=8, spec="workflow")
def bounds(bench: WorkflowBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before anything is built."""
    at_bounds(bench)
