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
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, breaking, row
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import SecondWorkflow


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


@mutant("workflow/single_turn", killers=("workflow.rows.own_prompt",), row="token-fidelity")
class PromptsByBeginning(_Remembers):
    """Remembers prompts by their first characters."""

    def key(self, prompt: str) -> object:
        return prompt[:40]


@mutant("workflow/single_turn", killers=("workflow.rows.own_prompt",), row="token-fidelity")
class PromptsByEnds(_Remembers):
    """Remembers prompts by how they begin, how they end and how long they are."""

    def key(self, prompt: str) -> object:
        return prompt[:20], prompt[-20:], len(prompt)


@mutant("workflow/single_turn", killers=("workflow.rows.own_prompt",))
class PromptsByPlace(_Remembers):
    """Remembers only so many prompts, and takes one that was forgotten for the one in its place."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._places: dict[str, int] = {}

    def key(self, prompt: str) -> object:
        return self._places.setdefault(prompt, len(self._places) % 256)


@mutant("workflow/single_turn", killers=("workflow.rows.whole",))
class RowOfText(Bent):
    """Gives the reward the text columns of the row only."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            row = {name: column for name, column in value.row.items() if isinstance(column, str)}
            return await super().reward(attrs.evolve(value, row=row))


@mutant("workflow/single_turn", killers=("workflow.rows.whole",))
class RowThroughJson(Bent):
    """Gives the reward the row as json tells it again."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            return await super().reward(attrs.evolve(value, row=json.loads(json.dumps(dict(value.row)))))


@mutant("workflow/single_turn", killers=("workflow.rows.whole",))
class RowWithoutNone(Bent):
    """Leaves out of the row what is None."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            row = {name: column for name, column in value.row.items() if column is not None}
            return await super().reward(attrs.evolve(value, row=row))


@mutant("workflow/single_turn", killers=("workflow.rows.worth",))
class AbortedIsWorthHalf(Bent):
    """Halves the reward of an output that was aborted."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop_reason is not StopReason.ABORTED:
            return trajectory
        return attrs.evolve(trajectory, reward=trajectory.reward / 2)


@mutant("workflow/single_turn", killers=("workflow.rows.worth",))
class FullBudgetIsWorthLess(Bent):
    """Takes something off the reward of an output exactly as long as the budget allows."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        full = int(trajectory.loss_mask.sum()) == 23
        return attrs.evolve(trajectory, reward=trajectory.reward - 0.1) if full else trajectory


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
