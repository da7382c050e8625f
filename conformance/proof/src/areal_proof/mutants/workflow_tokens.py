"""Broken workflows: tokens that are not those generated, turn by turn; things made up again or left out.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.trajectory import TrajectoryBuilder
from areal_core.contract.workflow import RewardInput, RewardResult, Session
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, given, row
from areal_proof.mutants.workflow_parts import Bent, BentSession, restamped
from areal_proof.second.workflow import BETWEEN, SecondWorkflow
from areal_tasks.workflows.critique import CritiqueWorkflow
from areal_tasks.workflows.single_turn import SingleTurnWorkflow

breaks = breaking("workflow/single_turn", Bent)
breaks_second = breaking("workflow/second", SecondWorkflow)
breaks_critique = breaking("workflow/critique", CritiqueWorkflow)


@breaks("generate", "workflow.tokens.provenance", incident="verl#6719", row="token-fidelity",
        part=("session", BentSession))  # fmt: skip
async def EncodesAnew(original: Original, self: BentSession) -> Any:
    """Trains on the text of the output, encoded again."""
    made = await original()
    ids = self.tokenizer.encode(self.tokenizer.decode(made.output_ids), add_special_tokens=False)
    ids = [*ids, *[0] * len(made.output_ids)][: len(made.output_ids)]
    return attrs.evolve(made, output_ids=ids)


@breaks("turned", "workflow.tokens.context")
def PromptIsTrained(trajectory: Trajectory) -> Any:
    """Trains on the last token of the prompt too."""
    first = int(trajectory.loss_mask.int().argmax())
    return restamped(trajectory, first - 1, loss_mask=True, versions=trajectory.versions[first])


@mutant("workflow/single_turn", killers=("workflow.tokens.prompt",))
class PromptCut(Bent):
    """Asks without the first token of the prompt."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            return await super().generate(input_ids[1:], sampling, **more)

    def turned(self, trajectory: Trajectory) -> Trajectory:
        names = ("input_ids", "loss_mask", "logprobs", "versions")
        return attrs.evolve(trajectory, **{name: getattr(trajectory, name)[1:] for name in names})


@breaks("encode", "workflow.tokens.prompt", "workflow.company.repeatable", base=SingleTurnWorkflow)
def CachedPromptGrows(self: SingleTurnWorkflow, tokenizer: Any, prompt: str) -> Any:
    """Remembers a prompt's ids, and appends to what it remembers."""
    ids = self.encoded.setdefault(prompt, tokenizer.encode(prompt))
    ids.append(ids[0])
    return list(ids)


ROWS = breaks.rows(
    row("EverythingStopped", "Says of truncated and aborted outputs that they came to their end.",
        "workflow.tokens.stop_reason", row="trained-as-submitted",
        turned=lambda trajectory: attrs.evolve(trajectory, stop_reason=StopReason.STOP)),
    row("ExpertsDropped", "Drops the columns that came with the tokens.", "workflow.tokens.extras",
        incident="SkyRL#1908", row="expert-replay",
        turned=lambda trajectory: attrs.evolve(trajectory, token_extras={})),
    row("UnrecordedIsExpertZero", "Fills the rows of tokens whose experts nobody recorded with expert 0.",
        "workflow.tokens.extras", incident="AReno#524", row="expert-replay",
        turned=lambda trajectory: attrs.evolve(trajectory, token_extras={name: column.clamp(min=0) for name,
            column in trajectory.token_extras.items()})),
    row("OwnTemperature", "Generates with sampling parameters of its own.", "workflow.session.temperature",
        row="logprob-gap", part=("session", BentSession),
        generate=lambda original, input_ids, more: original(input_ids, SamplingParams(), **more)),
    row("LogprobsOneTokenOff", "Writes each log-prob one token too late.", "workflow.tokens.provenance",
        row="logprob-gap",
        turned=lambda trajectory: restamped(trajectory, trajectory.loss_mask,
            logprobs=trajectory.logprobs[trajectory.loss_mask].roll(1))),
    row("VersionOfTheFirstToken", "Gives every token the version of the first.", "workflow.tokens.provenance",
        incident="vLLM#54443", row="version-spans",
        turned=lambda trajectory: restamped(trajectory, trajectory.loss_mask,
            versions=trajectory.versions[trajectory.loss_mask][0])),
    row("LastTokenUnmasked", "Trains on all generated tokens but the last.", "workflow.tokens.lengths",
        "workflow.tokens.provenance",
        turned=lambda trajectory: restamped(trajectory, -1, loss_mask=False, logprobs=0.0, versions=-1)),
    row("OneTokenIsNothing", "Takes an output of one token for an empty one, and trains on none of it.",
        "workflow.tokens.lengths",
        turned=lambda trajectory: trajectory if int(trajectory.loss_mask.sum()) > 1
            else restamped(trajectory, slice(None), loss_mask=False, logprobs=0.0, versions=-1)),
    row("PromptHasVersions", "Stamps the prompt with the version that read it.", "workflow.tokens.context",
        turned=lambda trajectory: restamped(trajectory, ~trajectory.loss_mask,
            versions=trajectory.versions[trajectory.loss_mask][0])),
    row("SpecialTokensSkipped", "Makes padding tokens of an output into context.", "workflow.tokens.special",
        row="token-fidelity",
        turned=lambda trajectory: restamped(trajectory, trajectory.loss_mask & (trajectory.input_ids == 0),
            loss_mask=False, logprobs=0.0, versions=-1)),
)  # fmt: skip


@breaks_second("joined", "workflow.turns.all")
def LastTurnOnly(original: Original, parts: Any, reward: float) -> Any:
    """Trains on the last turn only, and takes the one before for context."""
    last = len(parts) - 1
    flat = [
        (made.output_ids, None) if made is not None and at < last else (context, made)
        for at, (context, made) in enumerate(parts)
    ]
    return original(flat, reward)


@breaks_second("arun_episode", "workflow.turns.all")
async def OneTurn(self: SecondWorkflow, engine: Session, data: Mapping[str, Any]) -> Any:
    """Claims turns, and asks once."""
    made = TrajectoryBuilder(self.ids_of(engine, data["prompt"]))
    last = await engine.generate(made.input_ids)
    made.add_generation(last)
    return made.build(await self.score(engine, data, data["prompt"], last))


@breaks_second("arun_episode", "workflow.turns.prefix", incident="rllm#272", row="token-fidelity")
async def HistoryEncodedAnew(self: SecondWorkflow, engine: Session, data: Mapping[str, Any]) -> Any:
    """Asks the second turn with the text so far, encoded again."""
    context = self.ids_of(engine, data["prompt"])
    first = await engine.generate(context)
    text = engine.tokenizer.decode([*context, *first.output_ids]) + BETWEEN
    anew = self.ids_of(engine, text)
    second = await engine.generate(anew)
    value = await self.score(engine, data, data["prompt"], second)
    head = [*context, *first.output_ids, *self.ids_of(engine, BETWEEN)]
    return self.joined([(head, None), ((), second)], value)


@breaks_second("joined", "workflow.turns.between", "workflow.turns.all", incident="miles#353", row="token-fidelity")
def BetweenIsTrained(original: Original) -> Any:
    """Trains on what stands between the turns."""
    made = original()
    first = int(made.loss_mask.int().argmax())
    mask, versions = made.loss_mask.clone(), made.versions.clone()
    mask[first:], versions[first:] = True, versions[first:].clamp(min=3)
    return attrs.evolve(made, loss_mask=mask, versions=versions)


_OF = "workflow/single_turn"


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


@breaks_second("scored", "workflow.reward.some_components")
async def MissingPartIsZero(original: Original) -> Any:
    """Scores twice, and takes a part that one of the two rewards does not tell for 0."""
    one, other = await original(), await original()
    names = {*one.components, *other.components}
    parts = {name: (one.components.get(name, 0.0) + other.components.get(name, 0.0)) / 2 for name in names}
    return attrs.evolve(one, components=parts)


FIDELITY_ROWS = breaks.rows(
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


BEGINNING_ROWS = breaks.rows(
    row("ConversationBeginsTwice", "Encodes what a chat template wrote as a text of its own.",
        "workflow.tokens.one_beginning",
        prompt_ids=lambda original, tokenizer, data: [*_beginning(tokenizer, data), *original()]),
)  # fmt: skip
LATER_ROWS = breaks_second.rows(
    row("EveryTurnBegins", "Encodes what follows an answer as a text of its own.", "workflow.tokens.one_beginning",
        ids_of=lambda engine, text: engine.tokenizer.encode(text)),
)  # fmt: skip


class _Beginless(BentSession):
    """Asks with the first text of an episode as it begins, and with the others without their beginning."""

    first: tuple[int, ...] = ()

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        ids = tuple(input_ids)
        self.first = self.first or ids
        anew = ids[: len(self.first)] != self.first and ids[:1] == self.first[:1]
        return await super().generate(ids[1:] if anew else ids, sampling, **more)


@breaks_critique("arun_episode", "workflow.tokens.one_beginning")
async def CriticBeginsNowhere(original: Original, engine: Session, data: Mapping[str, Any]) -> Any:
    """Asks the critic with a text that does not begin as the policy's does."""
    return await original(_Beginless(engine), data)


class _EndOfTheFirst(BentSession):
    """Tells the reward how the first output ended."""

    ended = ""

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        """Generate, and remember how it ended the first time. Any: as in the contract."""
        made = await super().generate(input_ids, sampling, **more)
        self.ended = self.ended or str(made.stop_reason)
        return made

    async def reward(self, value: RewardInput) -> RewardResult:
        """Score."""
        return await super().reward(attrs.evolve(value, stop_reason=self.ended))


@breaks_critique("arun_episode", "workflow.reward.asked_with")
async def EndOfTheFirstAnswer(original: Original, engine: Session, data: Mapping[str, Any]) -> Any:
    """Tells the reward that the second answer ended as the first did."""
    return await original(_EndOfTheFirst(engine), data)


def _beginning(tokenizer: Any, data: Mapping[str, Any]) -> list[int]:
    begins = tokenizer.bos_token_id
    return [begins] if "messages" in data and begins is not None else []
