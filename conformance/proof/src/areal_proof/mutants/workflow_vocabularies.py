"""Broken workflows: ids that are too large for them, an end that stands twice, another form of a prompt than the exact.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs

from areal_conformance.benches.workflow_vocabularies import END_OF_TURN
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import Session
from areal_proof.mutants.rows import Original, breaking, given, row
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import BETWEEN, SecondWorkflow
from areal_tasks.workflows.critique import CritiqueWorkflow

breaks = breaking("workflow/single_turn", Bent)
breaks_second = breaking("workflow/second", SecondWorkflow)
breaks_critique = breaking("workflow/critique", CritiqueWorkflow)


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
    row("EndsByReason", "Writes the end of a turn behind an answer that did not stop, also where it said its end.",
        "workflow.turns.one_end",
        ids_of=lambda engine, text, original: [engine.tokenizer.eos_token_id, *original()] if text == BETWEEN
            and engine.asked[-1].generation.stop_reason is not StopReason.STOP else original()),
    row("CutAnswerTakesMore", "Leaves out the first token behind an answer that was cut.", "workflow.turns.one_end",
        ids_of=lambda engine, text, original: original()[1:] if text == BETWEEN
            and engine.asked[-1].generation.stop_reason is StopReason.LENGTH else original()),
)  # fmt: skip


class _Unending(BentSession):
    """Has a template that writes no end behind an answer."""

    def __init__(self, whole: Session) -> None:
        super().__init__(whole)
        tokenizer: Any = copy.copy(whole.tokenizer)  # Any: transformers is not typed here
        end, line = f"'{END_OF_TURN}\n'", "'\n'"
        if tokenizer.chat_template is not None:
            tokenizer.chat_template = tokenizer.chat_template.replace(
                end, f"({line} if m['role'] == 'assistant' else {end})"
            )
        self.tokenizer = tokenizer


@breaks_critique("arun_episode", "workflow.turns.one_end")
async def CutAnswerHasNoEnd(original: Original, engine: Session, data: Mapping[str, Any]) -> Any:
    """Goes on behind an answer that was cut without the end of a turn that the template writes there."""
    return await original(_Unending(engine), data)


class _Anew(BentSession):
    """Asks behind an answer that was cut with its text, encoded again."""

    before: tuple[list[int], Generation] | None = None

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        if self.before is not None and self.before[1].stop_reason is StopReason.LENGTH:
            prompt, made = self.before
            known = len(prompt) + len(made.output_ids)
            text = self.tokenizer.decode(list(made.output_ids))
            anew = self.tokenizer.encode(text, add_special_tokens=False)
            input_ids = [*prompt, *anew, *list(input_ids)[known:]]
        self.before = list(input_ids), await super().generate(input_ids, sampling, **more)
        return self.before[1]


@breaks_second("arun_episode", "workflow.turns.one_end", row="token-fidelity")
async def CutAnswerEncodedAnew(original: Original, engine: Session, data: Mapping[str, Any]) -> Any:
    """Goes on behind an answer that was cut from its text, encoded again."""
    return await original(_Anew(engine), data)
