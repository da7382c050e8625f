"""Broken workflows: wrong rewards, failures in disguise, rows and images exchanged, episodes that know of each other.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Mapping
from typing import Any

import attrs
from PIL import Image

from areal_core.contract.data import Episode, StopReason
from areal_core.contract.errors import ArealError, DatasetError, GenerationFailed, RewardFailed
from areal_core.contract.ids import GroupId
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus, Session
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, given, gives, row, then
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import SecondWorkflow
from areal_tasks.workflows.single_turn import SingleTurnWorkflow

breaks = breaking("workflow/single_turn", Bent)
breaks_second = breaking("workflow/second", SecondWorkflow)
breaks_bent = breaking("workflow/single_turn", Bent, part=("session", BentSession))


class _ZeroSession(BentSession):
    async def reward(self, value: RewardInput) -> RewardResult:
        result = await super().reward(value)
        return result if result.status == RewardStatus.OK else RewardResult(value=0.0)


SECOND_ROWS = breaks_second.rows(
    row("FailedRewardIsRetried",
        "Raises for a failed reward what is raised for a lost request, which is tried again and again.",
        "workflow.reward.failed_is_reward_failed",
        value=catches(RewardFailed, lambda error: GenerationFailed(error.what, why=error.why))),
    row("NotANumberIsFine", "Records a reward that is no number.", "workflow.reward.not_finite",
        joined=lambda original, parts, reward: attrs.evolve(original(parts, 0.0), reward=reward)),
)  # fmt: skip


@breaks_bent("generate", "workflow.failure.generation")
async def AsksAgain(original: Original) -> Any:
    """Asks a second time where a generation failed: the executor is the one who retries."""
    try:
        return await original()
    except GenerationFailed:
        return await original()


BENT_ROWS = breaks_bent.rows(
    row("RewardSeesSpecialTokens", "Scores the text with its special tokens.", "workflow.reward.asked_with",
        reward=given(completion=lambda value, self: self.tokenizer.decode(list(value.completion_ids)))),
    row("RewardSeesTrimmed", "Scores the text without the spaces and line breaks at its ends.",
        "workflow.tokens.vocabulary",
        reward=given(completion=lambda value, self: value.completion.strip())),
    row("RewardSeesNoLastToken", "Scores an output that stopped without its last token, whether or not that is an end.",
        "workflow.reward.asked_with",
        reward=given(completion=lambda value, self: self.tokenizer.decode(list(value.completion_ids)
            [: -1 if value.stop_reason == "stop" else None], skip_special_tokens=True))),
    row("RewardSeesPromptToo", "Scores prompt and output together.", "workflow.reward.asked_with",
        reward=given(completion_ids=lambda value, self: [*self.tokenizer.encode(value.prompt), *value.completion_ids])),
    row("CrashIsZero", "Knows three of the four ways a reward fails, and takes a crash for zero.",
        "workflow.reward.failed",
        reward=after(lambda result: RewardResult(value=0.0) if result.status == RewardStatus.CRASHED else result)),
    row("BrokenPoolIsZero", "Takes an error of the session while scoring for a reward of zero.",
        "workflow.reward.pool_broken", reward=catches(ArealError, lambda: RewardResult(value=0.0))),
    row("FailedGenerationIsEmpty",
        "Takes a generation that failed for an empty one, worth what the reward says of nothing.",
        "workflow.failure.generation", incident="NeMo-RL#3589", row="failed-is-typed",
        generate=catches(Exception, lambda: Generation(output_ids=(), logprobs=(), version_spans=(),
            stop_reason=StopReason.ABORTED))),
    row("ErrorsLoseTheirKind", "Wraps whatever a generation raises in an error of its own.",
        "workflow.failure.generation",
        generate=catches(Exception, lambda error: RuntimeError(f"generation failed: {error}"))),
)  # fmt: skip


@breaks_second("arun_episode", "workflow.turns.failure", row="failed-is-typed")
async def FirstTurnWillDo(original: Original, self: SecondWorkflow, engine: Session, data: Mapping[str, Any]) -> Any:
    """Makes an episode of the turns there are where a later one fails."""
    made: list[Generation] = []

    class Once(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            made.append(await super().generate(input_ids, sampling, **more))
            return made[-1]

    try:
        return await original(Once(engine), data)
    except GenerationFailed:
        if not made:
            raise
        return self.joined([(self.ids_of(engine, data["prompt"]), None), ((), made[0])], 0.0)


@breaks("arun_episode", "workflow.failure.alone", failed=False)
async def FailureSticks(original: Original, self: Any) -> Any:
    """Fails every episode after one that failed."""
    if self.failed:
        raise GenerationFailed("an episode before this one failed")
    try:
        return await original()
    except ArealError:
        self.failed = True
        raise


ROWS = breaks.rows(
    row("RewardsClipped", "Clips rewards to 0 and 1.", "workflow.reward.recorded",
        turned=lambda trajectory: attrs.evolve(trajectory, reward=min(max(trajectory.reward, 0.0), 1.0))),
    row("FailedRewardIsZero", "Takes a reward that failed for a reward of zero.", "workflow.reward.failed",
        row="failed-is-typed", session=_ZeroSession),
    row("FailedRewardIsRejection", "Rejects a row whose reward failed.", "workflow.reward.failed",
        row="failed-is-typed", arun_episode=catches(RewardFailed, lambda: None)),
    row("MissingIsEmpty", "Takes a row without a prompt for one with an empty prompt.", "workflow.rows.unfit",
        base=SingleTurnWorkflow, prompt_ids=catches(DatasetError, lambda: [2])),
    row("UnfitIdsAreEmpty", "Asks with an empty prompt where the column of token ids holds something else.",
        "workflow.rows.unfit", base=SingleTurnWorkflow,
        prompt_ids=catches(DatasetError, lambda error, data: [2] if "input_ids" in data else error)),
    row("ListsWithoutNone", "Leaves out what is nothing of a row's lists, and makes an episode of the rest.",
        "workflow.rows.unfit", base=SingleTurnWorkflow,
        prompt_ids=lambda original, tokenizer, data, task_id, num_images: original(tokenizer,
            {name: [one for one in value if one is not None] if isinstance(value, list) else value
            for name, value in data.items()}, task_id, num_images)),
    row("NoneIsText", "Asks the policy with the word None where a column holds nothing.", "workflow.rows.unfit",
        base=SingleTurnWorkflow,
        prompt_ids=lambda original, tokenizer, data, task_id, num_images: original(tokenizer,
            {name: str(value) for name, value in data.items()}, task_id, num_images)),
    row("ZeroIsRejected", "Rejects episodes whose reward is zero.", "workflow.rejection.on_purpose",
        incident="tinker-cookbook#822", row="trained-as-submitted",
        arun_episode=after(lambda result: result if result.trajectories[0].reward else None)),
    row("CancelSwallowed", "Takes being cancelled for a failed generation.", "workflow.cancel.prompt",
        part=("session", BentSession),
        generate=catches(asyncio.CancelledError, lambda: GenerationFailed("the generation was cancelled"))),
)  # fmt: skip


@breaks("arun_episode", "workflow.company.at_once", incident="NeMo-RL#3238", row="one-straggler", lock=None)
async def OneEpisodeAtATime(original: Original, self: Any) -> Any:
    """Makes one episode after another."""
    self.lock = self.lock or asyncio.Lock()
    async with self.lock:
        return await original()


@breaks("bent", "workflow.company.repeatable", total=0.0)
def RewardsAddUp(self: Any, episode: Episode) -> Any:
    """Tells in its metrics what all episodes so far were worth."""
    self.total += episode.trajectories[0].reward
    return attrs.evolve(episode, metrics={**episode.metrics, "total": self.total})


COMPANY_ROWS = breaks.rows(
    row("GroupIsTask", "Puts every episode in a group of its own.", "workflow.episode.names",
        bent=lambda episode: attrs.evolve(episode, group_id=GroupId(episode.task_id))),
    row("PromptOfTheLast", "Keeps the episode's names in the instance, where the episodes beside it write theirs.",
        "workflow.company.at_once", row="tenants", current=None,
        arun_episode=before(lambda self, engine: setattr(self, "current", engine)),
        bent=lambda self, episode: attrs.evolve(episode, task_id=self.current.task_id, group_id=self.current.group_id)),
    row("RequestsOutliveEpisode", "Shields its requests from being cancelled with the episode.",
        "workflow.cancel.prompt", part=("session", BentSession),
        generate=lambda original, input_ids, sampling, more: asyncio.shield(asyncio.ensure_future(original(input_ids,
            sampling, **more)))),
    row("AsksOnceMore", "Begins a request of which nobody waits for the end.", "workflow.tasks.none_left",
        arun_episode=then(lambda self: setattr(self, "left", asyncio.create_task(asyncio.sleep(3600.0))))),
    row("SleepsInTheLoop", "Sleeps in the event loop, as blocking clients do between two tries.",
        "workflow.loop.not_blocked", arun_episode=before(lambda: time.sleep(0.001))),
    row("RowKeepsAnswer", "Writes into the row what came of it.", "workflow.company.row_unchanged",
        base=SingleTurnWorkflow,
        arun_episode=then(lambda result, data: data.update(reward=result.trajectories[0].reward))),
)  # fmt: skip


@mutant("workflow/single_turn", killers=("workflow.cancel.others",))
class OneCancelsAll(Bent):
    """Cancels all episodes at work with the one that is cancelled."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.at_work: set[Any] = set()

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        task = asyncio.current_task()
        self.at_work.add(task)
        try:
            return await super().arun_episode(engine, data)
        except asyncio.CancelledError:
            for other in self.at_work - {task}:
                other.cancel()
            raise
        finally:
            self.at_work.discard(task)


class _Remembers(SingleTurnWorkflow):
    """Remembers prompts by a key."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._kept: dict[object, list[int]] = {}

    def key(self, prompt: str) -> object:
        """Return what a prompt is remembered by."""
        return prompt

    def encode(self, tokenizer: Any, prompt: str) -> list[int]:
        return list(self._kept.setdefault(self.key(prompt), tokenizer.encode(prompt)))


@breaks("__init__", "workflow.rows.own_prompt", base=_Remembers,
             key=lambda self, prompt: self._places.setdefault(prompt, len(self._places) % 256))  # fmt: skip
def PromptsByPlace(original: Original, self: Any) -> None:
    """Remembers only so many prompts, and takes one that was forgotten for the one in its place."""
    original()
    self._places = {}


ROWS_BENT_ROWS = breaks.rows(
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
breaks_rows = breaking(_OF, SingleTurnWorkflow)


@breaks_rows("images_of", "workflow.images.own", row="tenants")
async def ImagesByPrompt(original: Original, self: SingleTurnWorkflow, data: Mapping[str, Any]) -> Any:
    """Remembers the images of a row by its prompt."""
    seen = self.__dict__.setdefault("seen", {})
    key = data.get("prompt"), len(data.get("images") or ())
    if key not in seen:
        seen[key] = await original()
    kept: tuple[bytes, ...] = seen[key]
    return kept


ROWS_ROWS = breaks_rows.rows(
    row("MeasuresWithoutTheEnd", "Measures prompts without their last token.", "workflow.rows.measured",
        prompt_ids=after(lambda result, task_id: result[:-1] if task_id == "train/0/0" else result)),
    row("CutToTheTokenizersLimit", "Cuts prompts to the length that the files of the tokenizer give.",
        "workflow.rows.no_limit",
        prompt_ids=after(lambda result, tokenizer: result[-min(tokenizer.model_max_length, len(result)):])),
    row("ShownBackwards", "Shows the images of a row in the opposite order.", "workflow.images.shown",
        row="token-fidelity", base=Bent, part=("session", BentSession),
        generate=lambda original, input_ids, sampling, more: original(input_ids, sampling,
            **{**more, "images": more["images"][::-1]})),
    row("SameImageOnce", "Shows the first image in the place of one that is there twice.", "workflow.images.shown",
        images_of=after(lambda result: tuple(image if result.count(image) == 1 else result[1] for image in result))),
    row("LooksInTheLoop", "Decodes the images of a row where every episode is made.", "workflow.images.aside",
        images_of=then(lambda result: [Image.open(io.BytesIO(file)).load() for file in result] and None)),
    row("TrainedBlind", "Leaves the images out of the trajectory.", "workflow.images.carried",
        row="trained-as-submitted", base=Bent, turned=lambda trajectory: attrs.evolve(trajectory, images=())),
    row("CarriedBackwards", "Carries the images in the opposite order.", "workflow.images.carried",
        row="token-fidelity", base=Bent,
        turned=lambda trajectory: attrs.evolve(trajectory, images=trajectory.images[::-1])),
    row("AsManyAsFit", "Shows as many images as the prompt has places for, and leaves out the rest.",
        "workflow.images.not_dropped",
        images_of=after(lambda result, data: result[: str(data.get("prompt")).count("<|image_pad|>")])),
    row("TextModelsRefused", "Makes episodes for models that take images alone, also of rows without one.",
        "workflow.images.text_model", base=Bent,
        arun_episode=before(lambda engine: None if engine.image_token_id is not None
            else DatasetError("the model takes no images", why="its config.json names no image_token_id"))),
    row("BlindModelsToo", "Asks a model that takes no images about the text alone.", "workflow.images.not_dropped",
        base=Bent,
        arun_episode=lambda original, engine, data: original(engine, {name: column for name, column in data.items()
            if name != "images"} if engine.image_token_id is None else data)),
)  # fmt: skip


ROWS_SECOND_ROWS = breaks_second.rows(
    row("OtherOrderLater", "Shows the images in the opposite order from the second turn on.",
        "workflow.images.later_turns", row="token-fidelity",
        arun_episode=lambda original, engine, data: original(_Turning(engine), data)),
    row("FirstImageOnly", "Carries the first image alone.", "workflow.images.carried", "workflow.images.later_turns",
        arun_episode=gives(trajectories=lambda result: [attrs.evolve(one, images=one.images[:1])
            for one in result.trajectories])),
)  # fmt: skip


class _Turning(BentSession):
    turns = 0

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        self.turns += 1
        images = more["images"]
        return await super().generate(
            input_ids, sampling, **{**more, "images": images if self.turns == 1 else images[::-1]}
        )
