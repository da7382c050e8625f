"""Broken workflows that make something up again, or leave something out.

Knows: how the workflow of the core is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_proof.mutants import mutant
from areal_proof.mutants.workflow_parts import Bent, BentSession

_OF = "workflow/single_turn"


@mutant(_OF, killers=("workflow.tokens.as_sampled",), row="token-fidelity", incident="verl#6719")
class EncodesAnewIfAsLong(Bent):
    """Trains on the text of the output encoded again, wherever that has as many tokens."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            made = await super().generate(input_ids, sampling, **more)
            anew = self.tokenizer.encode(self.tokenizer.decode(made.output_ids), add_special_tokens=False)
            return attrs.evolve(made, output_ids=anew) if len(anew) == len(made.output_ids) else made


@mutant(_OF, killers=("workflow.reward.components",))
class PartsAreDropped(Bent):
    """Keeps a reward's value and forgets its parts."""

    def bent(self, episode: Episode) -> Episode:
        return attrs.evolve(episode, metrics={})


@mutant(_OF, killers=("workflow.reward.components",), row="tenants")
class PartsAreGathered(Bent):
    """Gives every episode the parts of all rewards so far."""

    def bent(self, episode: Episode) -> Episode:
        seen = self.__dict__.setdefault("seen", {})
        seen.update(episode.metrics)
        return attrs.evolve(episode, metrics=dict(seen))


@mutant(_OF, killers=("workflow.reward.any_end",))
class LongIsWorthLess(Bent):
    """Takes something off the reward of an output that was cut."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        cut = trajectory.stop_reason is StopReason.LENGTH
        return attrs.evolve(trajectory, reward=trajectory.reward - 0.25) if cut else trajectory


@mutant(_OF, killers=("workflow.reward.told_all",))
class RewardSeesNumbersAsText(Bent):
    """Shows the reward a row of texts."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            row = {name: column if isinstance(column, str) else str(column) for name, column in value.row.items()}
            return await super().reward(attrs.evolve(value, row=row))


@mutant(_OF, killers=("workflow.cancel.leaves_nothing",), row="dead-peer")
class RequestOutlivesEpisode(Bent):
    """Shields its requests from cancellation."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            return await asyncio.shield(asyncio.ensure_future(super().generate(input_ids, sampling, **more)))
