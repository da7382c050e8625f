"""Broken workflows: ids that are too large for them, an end that stands twice, another form of a prompt than the exact.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from areal_proof.mutants.rows import breaking, given, row
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import BETWEEN, SecondWorkflow

breaks = breaking("workflow/single_turn", Bent)
breaks_second = breaking("workflow/second", SecondWorkflow)


def _shortest_form(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row without the forms of its prompt that say more. Any: the data set decides."""
    kept = next(form for form in ("prompt", "messages", "input_ids") if form in data)
    return {name: value for name, value in data.items() if name == kept or name not in ("messages", "input_ids")}


ROWS = breaks.rows(
    row("PromptOf16Bits", "Keeps the ids of a prompt in 16 bits.", "workflow.tokens.vocabulary",
        prompt_ids=lambda original: [token & 0xFFFF for token in original()]),
    row("OutputOf16Bits", "Keeps the ids of a trajectory in 16 bits.", "workflow.tokens.vocabulary",
        turned=lambda trajectory: attrs.evolve(trajectory, input_ids=trajectory.input_ids & 0xFFFF)),
    row("TextBeforeTokens", "Asks with the text of a row that has a conversation or token ids, too.",
        "workflow.rows.exact_form",
        prompt_ids=lambda original, self, tokenizer, data, task_id, num_images: original(tokenizer,
            _shortest_form(data), task_id, num_images)),
    row("RewardSeesPromptCut", "Tells the reward a prompt without its last letter.", "workflow.reward.told_all",
        part=("session", BentSession), reward=given(prompt=lambda value: value.prompt[:-1])),
)  # fmt: skip
LATER_ROWS = breaks_second.rows(
    row("EndStandsTwice", "Writes the end of a turn behind an answer that has said it.", "workflow.tokens.vocabulary",
        ids_of=lambda engine, text, original: [engine.tokenizer.eos_token_id, *original()] if text == BETWEEN
            else original()),
)  # fmt: skip
