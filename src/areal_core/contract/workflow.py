"""How one prompt becomes an episode. Runs in the controller's event loop; never blocks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import RewardFailed
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, Structure
from areal_core.contract.optional import ToolParse


class RewardStatus:
    """Names of the ways a reward can end, as found in `RewardResult.status`."""

    OK = "ok"
    TIMEOUT = "timeout"
    RAISED = "raised"
    CRASHED = "crashed"
    INVALID = "invalid"


@frozen(kw_only=True)
class RewardResult:
    """What a reward function gave. `value` is a finite number exactly when `status` is ok.

    `components` are named parts: a workflow puts them among the episode's metrics under these names.
    They are not summed into the value.
    """

    value: float | None
    status: str = RewardStatus.OK
    components: Mapping[str, float] = field(factory=dict)
    detail: str = ""
    seconds: float = 0.0


_ENDINGS = {
    RewardStatus.OK: ("returned no value", "return a finite number for every completion"),
    RewardStatus.RAISED: ("raised", "make it return a finite number for every completion, whatever its text is"),
    RewardStatus.TIMEOUT: ("did not return", "make it faster, or raise rollout.reward.timeout_s"),
    RewardStatus.CRASHED: ("ended its process", "it may raise, but never call exit or crash an extension"),
    RewardStatus.INVALID: ("returned no finite number", "return a finite number for every completion"),
}
"""How a call ended -> what is said about it, and the fix."""


def require_ok(result: RewardResult, subject: str) -> float:
    """Return the value of a reward that is ok. Used by workflows: a reward that is not is never a zero.

    Raises:
        RewardFailed: names the subject (`episode train/0/3`), how the function ended, and its detail.
    """
    if result.status == RewardStatus.OK and result.value is not None:
        return result.value
    ending, fix = _ENDINGS[result.status]
    raise RewardFailed(f"the reward function {ending} for {subject}", why=result.detail, fix=fix)


@frozen(kw_only=True)
class RewardInput:
    """What a reward function is called with, as keyword arguments of the same names.

    `prompt` is the row's own text, or else what was asked, decoded; `completion` the output without special tokens.
    """

    prompt: str
    completion: str
    completion_ids: Sequence[int]
    stop_reason: str
    row: Mapping[str, Any]  # Any: the data set decides


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer workflows use."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return token ids."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str:
        """Return text."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Return token ids of a conversation. Any: options and result are transformers' own."""


@runtime_checkable
class Session(Protocol):
    """One episode's view of the inference fleet, given to the workflow for that episode.

    Requests of one session prefer one replica (prefix cache). When the episode is
    cancelled the session's requests are cancelled with it.
    """

    task_id: TaskId
    group_id: GroupId
    sampling: SamplingParams
    tokenizer: Tokenizer
    image_token_id: int | None
    """The token that stands for one image in `input_ids`, None if the policy takes no images. Since 1.2."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        structure: Structure | None = None,
        images: Sequence[bytes] = (),
        adapter: str = "",
    ) -> Generation:
        """Generate with the run's sampling parameters, or the given ones.

        A seed of the run's own, or none, is that of a draw of this turn's; any other is used as it is.
        An interruption by a weight update is continued here; the result is whole,
        with one version span per version that computed it.
        `structure` is what the output's text must look like, since 1.1; log-probs are of the tokens it allows.
        `images` are whole PNG or JPEG files, since 1.2: one for each `image_token_id` of `input_ids`, in order. A
        later turn gives those of earlier turns again, and the trajectory carries all that its tokens were asked with.
        `adapter` names one of `rollout.adapters` to generate with in place of the policy, since 1.3. What comes back
        is the policy's nowhere: its version is `NO_VERSION`, and a trajectory that trains on it cannot be made.

        Raises:
            PromptTooLong: the prompt leaves no room.
            NoReplica: every replica is out of service.
            CapabilityError: the engine does not claim what is asked, as `sampling.structured`, or has no such adapter.
            BatchError: more or fewer images than tokens that stand for one, or one that cannot be read.
        """

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read an output, decoded with its special tokens, for tool calls with the engine's own parser. Since 1.1.

        Any: each of `tools` is a JSON object as chat templates take them.

        Raises:
            CapabilityError: the engine does not claim `tools.parse`, or its options name no parser.
            NoReplica: every replica is out of service.
        """

    async def reward(self, value: RewardInput) -> RewardResult:
        """Score a completion in the reward process pool, within the configured deadline.

        Never raises for a bad reward function: the result says how it ended.
        """


@runtime_checkable
class RolloutWorkflow(Protocol):
    """How one episode is made. One instance serves every episode of a run, concurrently."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode | Trajectory | None:
        """Make one episode from one data row. Any: the data set decides what a row holds.

        Returns:
            An episode; or one trajectory, which the executor wraps; or None to reject the
            row on purpose (the executor counts it and never trains on it).

        Raises:
            Anything: the episode fails, typed and visible. It is never a reward of zero.
        """
