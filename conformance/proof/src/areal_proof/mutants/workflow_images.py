"""Broken workflows: images that are left out, exchanged, or forgotten.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import Session
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import SecondWorkflow

_OF = "workflow/single_turn"


@mutant(_OF, killers=("workflow.images.shown",), row="token-fidelity")
class ShownBackwards(Bent):
    """Shows the images of a row in the opposite order."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            return await super().generate(input_ids, sampling, **{**more, "images": more["images"][::-1]})


@mutant(_OF, killers=("workflow.images.shown",))
class SameImageOnce(SingleTurnWorkflow):
    """Shows the first image in the place of one that is there twice."""

    async def _images(self, data: Mapping[str, Any], task_id: str) -> tuple[bytes, ...]:
        images = await super()._images(data, task_id)
        return tuple(image if images.count(image) == 1 else images[1] for image in images)


@mutant(_OF, killers=("workflow.images.carried",), row="trained-as-submitted")
class TrainedBlind(Bent):
    """Leaves the images out of the trajectory."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        return attrs.evolve(trajectory, images=())


@mutant(_OF, killers=("workflow.images.carried",), row="token-fidelity")
class CarriedBackwards(Bent):
    """Carries the images in the opposite order."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        return attrs.evolve(trajectory, images=trajectory.images[::-1])


@mutant(_OF, killers=("workflow.images.own",), row="tenants")
class ImagesByPrompt(SingleTurnWorkflow):
    """Remembers the images of a row by its prompt."""

    async def _images(self, data: Mapping[str, Any], task_id: str) -> tuple[bytes, ...]:
        seen = self.__dict__.setdefault("seen", {})
        key = data.get("prompt"), len(data.get("images") or ())
        if key not in seen:
            seen[key] = await super()._images(data, task_id)
        kept: tuple[bytes, ...] = seen[key]
        return kept


@mutant(_OF, killers=("workflow.images.not_dropped",))
class AsManyAsFit(SingleTurnWorkflow):
    """Shows as many images as the prompt has places for, and leaves out the rest."""

    async def _images(self, data: Mapping[str, Any], task_id: str) -> tuple[bytes, ...]:
        images = await super()._images(data, task_id)
        return images[: str(data.get("prompt")).count("<|image_pad|>")]


@mutant(_OF, killers=("workflow.images.not_dropped",))
class BlindModelsToo(Bent):
    """Asks a model that takes no images about the text alone."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        if engine.image_token_id is None:
            data = {name: column for name, column in data.items() if name != "images"}
        return await super().arun_episode(engine, data)


@mutant("workflow/second", killers=("workflow.images.later_turns",), row="token-fidelity")
class OtherOrderLater(SecondWorkflow):
    """Shows the images in the opposite order from the second turn on."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        return await super().arun_episode(_Turning(engine), data)


class _Turning(BentSession):
    turns = 0

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        self.turns += 1
        images = more["images"]
        return await super().generate(
            input_ids, sampling, **{**more, "images": images if self.turns == 1 else images[::-1]}
        )


@mutant("workflow/second", killers=("workflow.images.carried", "workflow.images.later_turns"))
class FirstImageOnly(SecondWorkflow):
    """Carries the first image alone."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        episode = await super().arun_episode(engine, data)
        assert not isinstance(episode, Trajectory)
        carried = [attrs.evolve(one, images=one.images[:1]) for one in episode.trajectories]
        return attrs.evolve(episode, trajectories=carried)
