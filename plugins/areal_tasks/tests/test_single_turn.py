"""One prompt, one completion, one reward; what the data set does wrong is named."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError, RewardFailed
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus, RolloutWorkflow
from areal_core.plugins.registry import Registry
from areal_tasks.workflows.single_turn import SingleTurnConfig, SingleTurnWorkflow
from areal_torch.tokenizers import character_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}>{{ m['content'] }}-{% endfor %}"
    "{% if enable_thinking %}t{% endif %}{% if add_generation_prompt %}a>{% endif %}"
)
TOKENIZER = character_tokenizer()
TOKENIZER.chat_template = TEMPLATE


class AnsweringSession:
    """A session that generates a fixed answer and gives a fixed reward, and remembers what it was asked."""

    def __init__(self, answer: str = "enots", result: RewardResult | None = None) -> None:
        self.task_id = TaskId("train/2/7")
        self.group_id = GroupId("train/2/7")
        self.sampling = SamplingParams()
        self.tokenizer = TOKENIZER
        self.image_token_id: int | None = None
        self.prompt_ids: list[int] = []
        self.images: tuple[bytes, ...] = ()
        self.asked: RewardInput | None = None
        self._ids = (*TOKENIZER.encode(answer), TOKENIZER.eos_token_id)
        self._result = result or RewardResult(value=0.5, components={"letters": 5.0})

    @property
    def prompt(self) -> str:
        return str(TOKENIZER.decode(self.prompt_ids))

    async def generate(
        self, input_ids: Any, sampling: SamplingParams | None = None, *, images: Sequence[bytes] = ()
    ) -> Generation:
        self.prompt_ids, self.images = list(input_ids), tuple(images)
        half = len(self._ids) // 2
        return Generation(
            output_ids=self._ids,
            logprobs=[-0.5] * len(self._ids),
            version_spans=(
                VersionSpan(start=0, stop=half, version=3),
                VersionSpan(start=half, stop=len(self._ids), version=4),
            ),
            stop_reason="stop",
        )

    async def reward(self, value: RewardInput) -> RewardResult:
        self.asked = value
        return self._result


def episode(row: Mapping[str, Any], session: AnsweringSession, config: SingleTurnConfig | None = None) -> Episode:
    return asyncio.run(SingleTurnWorkflow(config).arun_episode(session, row))


def test_an_episode_holds_prompt_output_versions_and_reward() -> None:
    """Prompt tokens are context, output tokens are trained on with the engine's versions; ids are the session's."""
    session = AnsweringSession()
    row = {"prompt": "stone>", "answer": "enots"}
    made = episode(row, session)
    (trajectory,) = made.trajectories

    assert (made.task_id, made.group_id, dict(made.metrics)) == ("train/2/7", "train/2/7", {"letters": 5.0})
    assert TOKENIZER.decode(trajectory.input_ids.tolist()) == "stone>enots<eos>"
    assert trajectory.loss_mask.tolist() == [False] * 6 + [True] * 6
    assert trajectory.versions.tolist() == [-1] * 6 + [3] * 3 + [4] * 3
    assert (trajectory.reward, trajectory.stop_reason) == (0.5, "stop")
    assert session.asked is not None
    assert (session.asked.prompt, session.asked.completion, session.asked.stop_reason) == ("stone>", "enots", "stop")
    assert session.asked.row is row


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (RewardStatus.TIMEOUT, "did not return"),
        (RewardStatus.RAISED, "raised"),
        (RewardStatus.CRASHED, "process"),
        (RewardStatus.INVALID, "number"),
    ],
)
def test_a_reward_that_is_not_ok_is_an_error_never_a_zero(status: str, ending: str) -> None:
    """The episode fails, naming the task, the way the reward ended and its detail."""
    session = AnsweringSession(result=RewardResult(value=None, status=status, detail="line 3"))

    with pytest.raises(RewardFailed, match=f"{ending}.* for episode train/2/7") as caught:
        episode({"prompt": "stone>"}, session)
    assert caught.value.why == "line 3"


@pytest.mark.parametrize(
    ("row", "config", "prompt"),
    [
        ({"prompt": "ab"}, SingleTurnConfig(), "ab"),
        ({"prompt": "ab"}, SingleTurnConfig(chat=True), "u>ab-a>"),
        ({"prompt": "ab"}, SingleTurnConfig(system="s"), "s>s-u>ab-a>"),
        ({"messages": [{"role": "user", "content": "ab"}]}, SingleTurnConfig(), "u>ab-a>"),
        (
            {"messages": [{"role": "user", "content": "ab"}]},
            SingleTurnConfig(system="x", template={"enable_thinking": True}),
            "s>x-u>ab-ta>",
        ),
        ({"prompt": [{"role": "user", "content": "ab"}]}, SingleTurnConfig(enable_thinking=True), "u>ab-ta>"),
        ({"prompt": "ab", "chat_template_kwargs": {"enable_thinking": True}}, SingleTurnConfig(chat=True), "u>ab-ta>"),
        ({"input_ids": [3, 4], "prompt": "z"}, SingleTurnConfig(), "ab"),
    ],
)
def test_a_row_is_a_text_a_conversation_or_token_ids(
    row: Mapping[str, Any], config: SingleTurnConfig, prompt: str
) -> None:
    """The chat template is used for conversations and on request; its options and a system message reach it."""
    session = AnsweringSession()
    episode(row, session, config)

    assert session.prompt == prompt


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "x", "answer": "y"}, "'question', 'answer'"),
        ({"prompt": 5}, "it is '5'"),
        ({"messages": "hello"}, "it is 'hello'"),
        ({"input_ids": "hello"}, "a list of token ids"),
    ],
)
def test_an_unfit_row_is_named_with_what_it_holds(row: Mapping[str, Any], message: str) -> None:
    """The error names the row's task, the column, and what is there instead."""
    with pytest.raises(DatasetError, match="train/2/7") as caught:
        episode(row, AnsweringSession())

    assert message in caught.value.why


def test_it_is_found_and_built_by_name() -> None:
    """The entry point `single_turn` builds it from a yaml's options."""
    workflow = Registry().build("workflow", "single_turn", {"system": "be brief"})

    assert isinstance(workflow, SingleTurnWorkflow)
    assert isinstance(workflow, RolloutWorkflow)


def test_a_prompt_is_tokenised_once_for_its_group() -> None:
    """Members of a group share a prompt; each still gets a list of its own."""

    class Counting:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            self.seen.append(text)
            return [len(text)]

    tokenizer, workflow = Counting(), SingleTurnWorkflow()

    first = workflow.prompt_ids(tokenizer, {"prompt": "abc"}, "t")  # type: ignore[arg-type]
    first.append(9)
    others = [workflow.prompt_ids(tokenizer, {"prompt": text}, "t") for text in ("abc", "de")]  # type: ignore[arg-type]

    assert others == [[3], [2]]
    assert tokenizer.seen == ["abc", "de"]
