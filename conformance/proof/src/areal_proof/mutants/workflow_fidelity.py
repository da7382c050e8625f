"""Broken workflows that make something up again, or leave something out.

Knows: how the workflow of the core is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from areal_core.contract.data import Episode, StopReason
from areal_proof.mutants.rows import Original, breaking, given, row
from areal_proof.mutants.workflow_parts import Bent, BentSession

_OF = "workflow/single_turn"
breaks = breaking(_OF, Bent)


@breaks("generate", "workflow.tokens.as_sampled", incident="verl#6719", row="token-fidelity",
        part=("session", BentSession))  # fmt: skip
async def EncodesAnewIfAsLong(original: Original, self: BentSession) -> Any:
    """Trains on the text of the output encoded again, wherever that has as many tokens."""
    made = await original()
    anew = self.tokenizer.encode(self.tokenizer.decode(made.output_ids), add_special_tokens=False)
    return attrs.evolve(made, output_ids=anew) if len(anew) == len(made.output_ids) else made


@breaks("bent", "workflow.reward.components", row="tenants")
def PartsAreGathered(self: Bent, episode: Episode) -> Any:
    """Gives every episode the parts of all rewards so far."""
    seen = self.__dict__.setdefault("seen", {})
    seen.update(episode.metrics)
    return attrs.evolve(episode, metrics=dict(seen))


ROWS = breaks.rows(
    row("PartsAreDropped", "Keeps a reward's value and forgets its parts.", "workflow.reward.components",
        bent=lambda episode: attrs.evolve(episode, metrics={})),
    row("LongIsWorthLess", "Takes something off the reward of an output that was cut.", "workflow.reward.any_end",
        turned=lambda trajectory: attrs.evolve(trajectory, reward=trajectory.reward - 0.25)
            if trajectory.stop_reason is StopReason.LENGTH else trajectory),
    row("RewardSeesNumbersAsText", "Shows the reward a row of texts.", "workflow.reward.told_all",
        part=("session", BentSession),
        reward=given(row=lambda value: {name: column if isinstance(column, str) else str(column) for name,
            column in value.row.items()})),
    row("RequestOutlivesEpisode", "Shields its requests from cancellation.", "workflow.cancel.leaves_nothing",
        row="dead-peer", part=("session", BentSession),
        generate=lambda original, input_ids, sampling, more: asyncio.shield(asyncio.ensure_future(original(input_ids,
            sampling, **more)))),
)  # fmt: skip
