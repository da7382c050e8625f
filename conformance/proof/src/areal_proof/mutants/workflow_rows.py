"""Broken workflows: rows and images that are exchanged, cut, forgotten, or worth something else.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants.rows import Original, after, breaking, given, row
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import SecondWorkflow

breaks_bent = breaking("workflow/single_turn", Bent)


class _Remembers(SingleTurnWorkflow):
    """Remembers prompts by a key."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._kept: dict[object, list[int]] = {}

    def key(self, prompt: str) -> object:
        """Return what a prompt is remembered by."""
        return prompt

    def _encode(self, tokenizer: Any, prompt: str) -> list[int]:
        return list(self._kept.setdefault(self.key(prompt), tokenizer.encode(prompt)))


@breaks_bent("__init__", "workflow.rows.own_prompt", base=_Remembers,
             key=lambda self, prompt: self._places.setdefault(prompt, len(self._places) % 256))  # fmt: skip
def PromptsByPlace(original: Original, self: Any) -> None:
    """Remembers only so many prompts, and takes one that was forgotten for the one in its place."""
    original()
    self._places = {}


BENT_ROWS = breaks_bent.rows(
    row("PromptsByBeginning", "Remembers prompts by their first characters.", "workflow.rows.own_prompt",
        row="token-fidelity", base=_Remembers, key=lambda prompt: prompt[:40]),
    row("PromptsByEnds", "Remembers prompts by how they begin, how they end and how long they are.",
        "workflow.rows.own_prompt", row="token-fidelity", base=_Remembers,
        key=lambda prompt: (prompt[:20], prompt[-20:], len(prompt))),
    row("RowOfText", "Gives the reward the text columns of the row only.", "workflow.rows.whole",
        part=("session", BentSession),
        reward=given(row=lambda value: {name: column for name, column in value.row.items()
            if isinstance(column, str)})),
    row("RowThroughJson", "Gives the reward the row as json tells it again.", "workflow.rows.whole",
        part=("session", BentSession), reward=given(row=lambda value: json.loads(json.dumps(dict(value.row))))),
    row("RowWithoutNone", "Leaves out of the row what is None.", "workflow.rows.whole", part=("session", BentSession),
        reward=given(row=lambda value: {name: column for name, column in value.row.items() if column is not None})),
    row("AbortedIsWorthHalf", "Halves the reward of an output that was aborted.", "workflow.rows.worth",
        turned=lambda trajectory: trajectory if trajectory.stop_reason is not StopReason.ABORTED
            else attrs.evolve(trajectory, reward=trajectory.reward / 2)),
    row("FullBudgetIsWorthLess", "Takes something off the reward of an output exactly as long as the budget allows.",
        "workflow.rows.worth",
        turned=lambda trajectory: attrs.evolve(trajectory, reward=trajectory.reward - 0.1)
            if int(trajectory.loss_mask.sum()) == 23 else trajectory),
)  # fmt: skip


_OF = "workflow/single_turn"
breaks = breaking(_OF, SingleTurnWorkflow)
breaks_second = breaking("workflow/second", SecondWorkflow)


@breaks("_images", "workflow.images.own", row="tenants")
async def ImagesByPrompt(original: Original, self: SingleTurnWorkflow, data: Mapping[str, Any]) -> Any:
    """Remembers the images of a row by its prompt."""
    seen = self.__dict__.setdefault("seen", {})
    key = data.get("prompt"), len(data.get("images") or ())
    if key not in seen:
        seen[key] = await original()
    kept: tuple[bytes, ...] = seen[key]
    return kept


ROWS = breaks.rows(
    row("ShownBackwards", "Shows the images of a row in the opposite order.", "workflow.images.shown",
        row="token-fidelity", base=Bent, part=("session", BentSession),
        generate=lambda original, input_ids, sampling, more: original(input_ids, sampling,
            **{**more, "images": more["images"][::-1]})),
    row("SameImageOnce", "Shows the first image in the place of one that is there twice.", "workflow.images.shown",
        _images=after(lambda result: tuple(image if result.count(image) == 1 else result[1] for image in result))),
    row("TrainedBlind", "Leaves the images out of the trajectory.", "workflow.images.carried",
        row="trained-as-submitted", base=Bent, turned=lambda trajectory: attrs.evolve(trajectory, images=())),
    row("CarriedBackwards", "Carries the images in the opposite order.", "workflow.images.carried",
        row="token-fidelity", base=Bent,
        turned=lambda trajectory: attrs.evolve(trajectory, images=trajectory.images[::-1])),
    row("AsManyAsFit", "Shows as many images as the prompt has places for, and leaves out the rest.",
        "workflow.images.not_dropped",
        _images=after(lambda result, data: result[: str(data.get("prompt")).count("<|image_pad|>")])),
    row("BlindModelsToo", "Asks a model that takes no images about the text alone.", "workflow.images.not_dropped",
        base=Bent,
        arun_episode=lambda original, engine, data: original(engine, {name: column for name, column in data.items()
            if name != "images"} if engine.image_token_id is None else data)),
)  # fmt: skip


SECOND_ROWS = breaks_second.rows(
    row("OtherOrderLater", "Shows the images in the opposite order from the second turn on.",
        "workflow.images.later_turns", row="token-fidelity",
        arun_episode=lambda original, engine, data: original(_Turning(engine), data)),
)  # fmt: skip


class _Turning(BentSession):
    turns = 0

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        self.turns += 1
        images = more["images"]
        return await super().generate(
            input_ids, sampling, **{**more, "images": images if self.turns == 1 else images[::-1]}
        )


@breaks_second("arun_episode", "workflow.images.carried", "workflow.images.later_turns")
async def FirstImageOnly(original: Original) -> Any:
    """Carries the first image alone."""
    episode = await original()
    assert not isinstance(episode, Trajectory)
    carried = [attrs.evolve(one, images=one.images[:1]) for one in episode.trajectories]
    return attrs.evolve(episode, trajectories=carried)
