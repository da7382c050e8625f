"""A session whose policy says given texts, over the chat model's own tokenizer; what it was asked is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_core.plugins.registry import Registry
from areal_tasks.tiny_chat import chat_tokenizer

TOKENIZER = chat_tokenizer()
END = TOKENIZER.eos_token
RENDERER: Any = Registry().build("renderer", "template", {"calls": "json"}).bind(TOKENIZER)  # type: ignore[attr-defined]


class Proven:
    """The renderer `template`, proven on the tokenizer once for all tests."""

    def bind(self, tokenizer: Any) -> Any:
        assert tokenizer is TOKENIZER
        return RENDERER


REGISTRY = Registry(entries={("renderer", "proven"): Proven})
OPENS = "<|im_start|>assistant\n"
Words = str | Sequence[int] | BaseException


class Talking:
    """Says one after the other, the last one again; texts end with the end token, ids are said as they are."""

    image_token_id = None

    def __init__(
        self, *says: Words, rewards: Iterable[float] = (1.0,), judge: Callable[..., float] | None = None
    ) -> None:
        self.task_id, self.group_id = TaskId("train/0/1"), GroupId("train/0/1")
        self.sampling, self.tokenizer = SamplingParams(max_new_tokens=64), TOKENIZER
        self.asked: list[tuple[int, ...]] = []
        self.adapters: list[str] = []
        self.said: list[tuple[int, ...]] = []
        self.scored: list[RewardInput] = []
        self._says, self._rewards, self._judge = says, list(rewards), judge

    async def generate(self, input_ids: Any, sampling: Any = None, *, adapter: str = "", **more: Any) -> Generation:
        words = self._says[min(len(self.asked), len(self._says) - 1)]
        self.asked.append(tuple(input_ids))
        self.adapters.append(adapter)
        number = len(self.asked)
        await asyncio.sleep(0)
        if isinstance(words, BaseException):
            raise words
        ids = tuple(ids_of(words + END) if isinstance(words, str) else words)
        self.said.append(ids)
        version = -1 if adapter else number
        spans = (VersionSpan(start=0, stop=len(ids), version=version),)
        return Generation(output_ids=ids, logprobs=[-number / 64] * len(ids), version_spans=spans, stop_reason="stop")

    async def parse_tool_calls(self, text: str, tools: Any) -> ToolParse:
        return ToolParse(content="", calls=[ToolCall(name="calculator", arguments='{"expression": "1+1"}')])

    async def reward(self, value: RewardInput) -> RewardResult:
        self.scored.append(value)
        if self._judge is not None:
            return RewardResult(value=self._judge(value))
        rewards = self._rewards
        return RewardResult(value=rewards[min(len(self.scored), len(rewards)) - 1], components={"judged": 1.0})


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


def made(name: str, session: Talking, row: Mapping[str, Any] | None = None, **options: Any) -> Episode:
    """Make one episode with a workflow of this package."""
    given = {"renderer": "proven", **options}
    workflow: Any = REGISTRY.build("workflow", name, given, "options")
    return asyncio.run(workflow.arun_episode(session, row or {"prompt": "ab>", "answer": "ba"}))  # type: ignore[no-any-return]


def whole(trajectory: Trajectory) -> str:
    return str(TOKENIZER.decode(trajectory.input_ids.tolist()))


def learned(trajectory: Trajectory) -> str:
    return str(TOKENIZER.decode(trajectory.input_ids[trajectory.loss_mask].tolist()))


def call(expression: str, name: str = "calculator", key: str = "expression") -> str:
    """Return a call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"{key}": "{expression}"}}}}\n</tool_call>'
