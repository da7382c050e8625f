"""Broken workflows: tokens that are not those generated, turn by turn.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.trajectory import TrajectoryBuilder
from areal_core.contract.workflow import Session
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import BETWEEN, SecondWorkflow


@mutant("workflow/single_turn", killers=("workflow.tokens.provenance",), row="token-fidelity", incident="verl#6719")
class EncodesAnew(Bent):
    """Trains on the text of the output, encoded again."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            made = await super().generate(input_ids, sampling, **more)
            ids = self.tokenizer.encode(self.tokenizer.decode(made.output_ids), add_special_tokens=False)
            ids = [*ids, *[0] * len(made.output_ids)][: len(made.output_ids)]
            return attrs.evolve(made, output_ids=ids)


@mutant("workflow/single_turn", killers=("workflow.tokens.provenance",), row="logprob-gap")
class LogprobsOneTokenOff(Bent):
    """Writes each log-prob one token too late."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        masked = trajectory.logprobs[trajectory.loss_mask]
        logprobs = trajectory.logprobs.clone()
        logprobs[trajectory.loss_mask] = masked.roll(1)
        return attrs.evolve(trajectory, logprobs=logprobs)


@mutant("workflow/single_turn", killers=("workflow.tokens.provenance",), row="version-spans", incident="vLLM#54443")
class VersionOfTheFirstToken(Bent):
    """Gives every token the version of the first."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        versions = trajectory.versions.clone()
        versions[trajectory.loss_mask] = trajectory.versions[trajectory.loss_mask][0]
        return attrs.evolve(trajectory, versions=versions)


@mutant("workflow/single_turn", killers=("workflow.tokens.lengths", "workflow.tokens.provenance"))
class LastTokenUnmasked(Bent):
    """Trains on all generated tokens but the last."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        mask, logprobs, versions = (
            column.clone() for column in (trajectory.loss_mask, trajectory.logprobs, trajectory.versions)
        )
        mask[-1], logprobs[-1], versions[-1] = False, 0.0, -1
        return attrs.evolve(trajectory, loss_mask=mask, logprobs=logprobs, versions=versions)


@mutant("workflow/single_turn", killers=("workflow.tokens.lengths",))
class OneTokenIsNothing(Bent):
    """Takes an output of one token for an empty one, and trains on none of it."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        if int(trajectory.loss_mask.sum()) > 1:
            return trajectory
        off, none = trajectory.loss_mask & False, trajectory.logprobs * 0
        return attrs.evolve(trajectory, loss_mask=off, logprobs=none, versions=trajectory.versions * 0 - 1)


@mutant("workflow/single_turn", killers=("workflow.tokens.context",))
class PromptIsTrained(Bent):
    """Trains on the last token of the prompt too."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        first = int(trajectory.loss_mask.int().argmax()) - 1
        mask, versions = trajectory.loss_mask.clone(), trajectory.versions.clone()
        mask[first], versions[first] = True, versions[first + 1]
        return attrs.evolve(trajectory, loss_mask=mask, versions=versions)


@mutant("workflow/single_turn", killers=("workflow.tokens.context",))
class PromptHasVersions(Bent):
    """Stamps the prompt with the version that read it."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        versions = trajectory.versions.clone()
        versions[~trajectory.loss_mask] = versions[trajectory.loss_mask][0]
        return attrs.evolve(trajectory, versions=versions)


@mutant("workflow/single_turn", killers=("workflow.tokens.prompt",))
class PromptCut(Bent):
    """Asks without the first token of the prompt."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            return await super().generate(input_ids[1:], sampling, **more)

    def turned(self, trajectory: Trajectory) -> Trajectory:
        names = ("input_ids", "loss_mask", "logprobs", "versions")
        return attrs.evolve(trajectory, **{name: getattr(trajectory, name)[1:] for name in names})


@mutant("workflow/single_turn", killers=("workflow.tokens.prompt", "workflow.company.repeatable"))
class CachedPromptGrows(SingleTurnWorkflow):
    """Remembers a prompt's ids, and appends to what it remembers."""

    def _encode(self, tokenizer: Any, prompt: str) -> list[int]:
        ids = self._encoded.setdefault(prompt, tokenizer.encode(prompt))
        ids.append(ids[0])
        return list(ids)


@mutant("workflow/single_turn", killers=("workflow.tokens.special",), row="token-fidelity")
class SpecialTokensSkipped(Bent):
    """Makes padding tokens of an output into context."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        dropped = trajectory.loss_mask & (trajectory.input_ids == 0)
        mask, logprobs, versions = (
            column.clone() for column in (trajectory.loss_mask, trajectory.logprobs, trajectory.versions)
        )
        mask[dropped], logprobs[dropped], versions[dropped] = False, 0.0, -1
        return attrs.evolve(trajectory, loss_mask=mask, logprobs=logprobs, versions=versions)


@mutant("workflow/single_turn", killers=("workflow.tokens.stop_reason",), row="trained-as-submitted")
class EverythingStopped(Bent):
    """Says of truncated and aborted outputs that they came to their end."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        return attrs.evolve(trajectory, stop_reason=StopReason.STOP)


@mutant("workflow/single_turn", killers=("workflow.tokens.extras",), row="expert-replay", incident="SkyRL#1908")
class ExpertsDropped(Bent):
    """Drops the columns that came with the tokens."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        return attrs.evolve(trajectory, token_extras={})


@mutant("workflow/single_turn", killers=("workflow.tokens.extras",), row="expert-replay", incident="AReno#524")
class UnrecordedIsExpertZero(Bent):
    """Fills the rows of tokens whose experts nobody recorded with expert 0."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        extras = {name: column.clamp(min=0) for name, column in trajectory.token_extras.items()}
        return attrs.evolve(trajectory, token_extras=extras)


@mutant("workflow/single_turn", killers=("workflow.session.temperature",), row="logprob-gap")
class OwnTemperature(Bent):
    """Generates with sampling parameters of its own."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            return await super().generate(input_ids, SamplingParams(), **more)


@mutant("workflow/second", killers=("workflow.turns.all",))
class LastTurnOnly(SecondWorkflow):
    """Trains on the last turn only, and takes the one before for context."""

    def joined(self, parts: Any, reward: float) -> Trajectory:
        last = len(parts) - 1
        flat = [
            (made.output_ids, None) if made is not None and at < last else (context, made)
            for at, (context, made) in enumerate(parts)
        ]
        return super().joined(flat, reward)


@mutant("workflow/second", killers=("workflow.turns.all",))
class OneTurn(SecondWorkflow):
    """Claims turns, and asks once."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory:
        made = TrajectoryBuilder(self.ids_of(engine, data["prompt"]))
        last = await engine.generate(made.input_ids)
        made.add_generation(last)
        return made.build(await self.score(engine, data, data["prompt"], last))


@mutant("workflow/second", killers=("workflow.turns.prefix",), row="token-fidelity", incident="rllm#272")
class HistoryEncodedAnew(SecondWorkflow):
    """Asks the second turn with the text so far, encoded again."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory:
        context = self.ids_of(engine, data["prompt"])
        first = await engine.generate(context)
        text = engine.tokenizer.decode([*context, *first.output_ids]) + BETWEEN
        anew = self.ids_of(engine, text)
        second = await engine.generate(anew)
        value = await self.score(engine, data, data["prompt"], second)
        head = [*context, *first.output_ids, *self.ids_of(engine, BETWEEN)]
        return self.joined([(head, None), ((), second)], value)


@mutant("workflow/second", killers=("workflow.turns.between", "workflow.turns.all"), row="token-fidelity",
        incident="miles#353")  # fmt: skip
class BetweenIsTrained(SecondWorkflow):
    """Trains on what stands between the turns."""

    def joined(self, parts: Any, reward: float) -> Trajectory:
        made = super().joined(parts, reward)
        first = int(made.loss_mask.int().argmax())
        mask, versions = made.loss_mask.clone(), made.versions.clone()
        mask[first:], versions[first:] = True, versions[first:].clamp(min=3)
        return attrs.evolve(made, loss_mask=mask, versions=versions)
