"""Broken workflows: adapters that are not asked, or whose words are taken for the policy's.

Knows: how the second workflow is bent where it asks an adapter.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import Session
from areal_proof.mutants.rows import Original, breaking
from areal_proof.mutants.workflow_parts import BentSession
from areal_proof.second.workflow import SecondWorkflow

breaks = breaking("workflow/second", SecondWorkflow)


class _Deaf(BentSession):
    """Asks the policy where an adapter was named."""

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        return await super().generate(input_ids, sampling, **{**more, "adapter": ""})


class _Always(BentSession):
    """Asks an adapter where nobody named one."""

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        made = await super().generate(input_ids, sampling, **{"adapter": "a", **more})
        return attrs.evolve(made, version_spans=[attrs.evolve(span, version=3) for span in made.version_spans])


@breaks("arun_episode", "workflow.adapters.asked")
async def AsksThePolicyInstead(
    original: Original, self: SecondWorkflow, engine: Session, data: Mapping[str, Any]
) -> Any:
    """Asks the policy what an adapter was to say."""
    return await original(_Deaf(engine), data)


@breaks("arun_episode", "workflow.adapters.untrained", "workflow.adapters.asked")
async def AdapterForThePolicy(
    original: Original, self: SecondWorkflow, engine: Session, data: Mapping[str, Any]
) -> Any:
    """Has an adapter answer in the policy's place, and trains on that as a version of the policy."""
    return await original(_Always(engine), data)


@breaks("joined", "workflow.adapters.untrained")
def TrainsOnTheAdapter(original: Original, self: SecondWorkflow, parts: Any, reward: float) -> Any:
    """Trains on what the adapter said, stamped with the version of the token before."""
    made = original()
    if not self.config.asks:
        return made
    first = int(made.loss_mask.int().argmax())
    mask, versions = made.loss_mask.clone(), made.versions.clone()
    mask[first:], versions[first:] = True, versions[first:].clamp(min=int(versions[first]))
    return attrs.evolve(made, loss_mask=mask, versions=versions)
