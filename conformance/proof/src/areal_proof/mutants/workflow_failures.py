"""Broken workflows: rewards that are not those given, and failures that pass for something else.

Knows: how the workflow of the core, or the second one, is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import ArealError, DatasetError, GenerationFailed, RewardFailed
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus, Session
from areal_core.workflows.single_turn import SingleTurnWorkflow
from areal_proof.mutants import mutant
from areal_proof.mutants.workflow_parts import Bent, BentSession
from areal_proof.second.workflow import SecondWorkflow


@mutant("workflow/single_turn", killers=("workflow.reward.recorded",))
class RewardsClipped(Bent):
    """Clips rewards to 0 and 1."""

    def turned(self, trajectory: Trajectory) -> Trajectory:
        return attrs.evolve(trajectory, reward=min(max(trajectory.reward, 0.0), 1.0))


@mutant("workflow/single_turn", killers=("workflow.reward.asked_with",))
class RewardSeesSpecialTokens(Bent):
    """Scores the text with its special tokens."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            return await super().reward(
                attrs.evolve(value, completion=self.tokenizer.decode(list(value.completion_ids)))
            )


@mutant("workflow/single_turn", killers=("workflow.reward.asked_with",))
class RewardSeesPromptToo(Bent):
    """Scores prompt and output together."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            ids = [*self.tokenizer.encode(value.prompt), *value.completion_ids]
            return await super().reward(attrs.evolve(value, completion_ids=ids))


class _ZeroSession(BentSession):
    async def reward(self, value: RewardInput) -> RewardResult:
        result = await super().reward(value)
        return result if result.status == RewardStatus.OK else RewardResult(value=0.0)


@mutant("workflow/single_turn", killers=("workflow.reward.failed",), row="failed-is-typed")
class FailedRewardIsZero(Bent):
    """Takes a reward that failed for a reward of zero."""

    session = _ZeroSession


@mutant("workflow/single_turn", killers=("workflow.reward.failed",), row="failed-is-typed")
class FailedRewardIsRejection(Bent):
    """Rejects a row whose reward failed."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        try:
            return await super().arun_episode(engine, data)
        except RewardFailed:
            return None


@mutant("workflow/single_turn", killers=("workflow.reward.failed",))
class CrashIsZero(Bent):
    """Knows three of the four ways a reward fails, and takes a crash for zero."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            result = await super().reward(value)
            return RewardResult(value=0.0) if result.status == RewardStatus.CRASHED else result


@mutant("workflow/second", killers=("workflow.reward.failed_is_reward_failed",))
class FailedRewardIsRetried(SecondWorkflow):
    """Raises for a failed reward what is raised for a lost request, which is tried again and again."""

    def value(self, engine: Session, result: RewardResult) -> float:
        try:
            return super().value(engine, result)
        except RewardFailed as error:
            raise GenerationFailed(error.what, why=error.why) from error


@mutant("workflow/second", killers=("workflow.reward.not_finite",))
class NotANumberIsFine(SecondWorkflow):
    """Records a reward that is no number."""

    def joined(self, parts: Any, reward: float) -> Trajectory:
        return attrs.evolve(super().joined(parts, 0.0), reward=reward)


@mutant("workflow/single_turn", killers=("workflow.reward.pool_broken",))
class BrokenPoolIsZero(Bent):
    """Takes an error of the session while scoring for a reward of zero."""

    class session(BentSession):
        async def reward(self, value: RewardInput) -> RewardResult:
            try:
                return await super().reward(value)
            except ArealError:
                return RewardResult(value=0.0)


@mutant(
    "workflow/single_turn", killers=("workflow.failure.generation",), row="failed-is-typed", incident="NeMo-RL#3589"
)
class FailedGenerationIsEmpty(Bent):
    """Takes a generation that failed for an empty one, worth what the reward says of nothing."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            try:
                return await super().generate(input_ids, sampling, **more)
            except Exception:
                return Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.ABORTED)


@mutant("workflow/single_turn", killers=("workflow.failure.generation",))
class AsksAgain(Bent):
    """Asks a second time where a generation failed: the executor is the one who retries."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            try:
                return await super().generate(input_ids, sampling, **more)
            except GenerationFailed:
                return await super().generate(input_ids, sampling, **more)


@mutant("workflow/single_turn", killers=("workflow.failure.generation",))
class ErrorsLoseTheirKind(Bent):
    """Wraps whatever a generation raises in an error of its own."""

    class session(BentSession):
        async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
            try:
                return await super().generate(input_ids, sampling, **more)
            except Exception as error:
                raise RuntimeError(f"generation failed: {error}") from error


@mutant("workflow/second", killers=("workflow.turns.failure",), row="failed-is-typed")
class FirstTurnWillDo(SecondWorkflow):
    """Makes an episode of the turns there are where a later one fails."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode | Trajectory:
        made: list[Generation] = []

        class Once(BentSession):
            async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
                made.append(await super().generate(input_ids, sampling, **more))
                return made[-1]

        try:
            return await super().arun_episode(Once(engine), data)
        except GenerationFailed:
            if not made:
                raise
            return self.joined([(self.ids_of(engine, data["prompt"]), None), ((), made[0])], 0.0)


@mutant("workflow/single_turn", killers=("workflow.failure.alone",))
class FailureSticks(Bent):
    """Fails every episode after one that failed."""

    failed = False

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        if self.failed:
            raise GenerationFailed("an episode before this one failed")
        try:
            return await super().arun_episode(engine, data)
        except ArealError:
            self.failed = True
            raise


@mutant("workflow/single_turn", killers=("workflow.rows.unfit",))
class MissingIsEmpty(SingleTurnWorkflow):
    """Takes a row without a prompt for one with an empty prompt."""

    def prompt_ids(self, tokenizer: Any, data: Mapping[str, Any], task_id: str, num_images: int = 0) -> list[int]:
        try:
            return super().prompt_ids(tokenizer, data, task_id, num_images)
        except DatasetError:
            return [2]


@mutant("workflow/single_turn", killers=("workflow.rows.unfit",))
class NoneIsText(SingleTurnWorkflow):
    """Asks the policy with the word None where a column holds nothing."""

    def prompt_ids(self, tokenizer: Any, data: Mapping[str, Any], task_id: str, num_images: int = 0) -> list[int]:
        given = {name: str(value) for name, value in data.items()}
        return super().prompt_ids(tokenizer, given, task_id, num_images)


@mutant("workflow/single_turn", killers=("workflow.rejection.on_purpose",), row="trained-as-submitted",
        incident="tinker-cookbook#822")  # fmt: skip
class ZeroIsRejected(Bent):
    """Rejects episodes whose reward is zero."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        episode = await super().arun_episode(engine, data)
        return episode if episode.trajectories[0].reward else None
