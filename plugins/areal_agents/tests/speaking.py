"""A session whose policy answers with a letter of its own, and agents that talk to it by OpenAI's client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from areal_agents.config import AgentConfig
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.data import Episode
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.workflow import RewardInput, RewardResult


def byte_tokenizer() -> Any:
    """Return a tokenizer whose tokens are bytes, and an end. Any: transformers' own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<eos>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )


TOKENIZER = byte_tokenizer()
TOKENIZER.chat_template = (
    "{% if tools %}t>{{ tools | tojson }}<eos>{% endif %}"
    "{% for m in messages %}{{ m['role'][0] }}>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}a>{% endif %}"
).replace("<eos>", TOKENIZER.eos_token)


class Speaking:
    """Answers `letter` and one letter more for each answer, at version 3; or raises where `fails` names the answer."""

    image_token_id = None

    def __init__(self, letter: str = "x", fails: Mapping[int, Exception] | None = None) -> None:
        self.task_id, self.group_id = TaskId(f"train/0/{letter}"), GroupId(f"train/0/{letter}")
        self.sampling, self.tokenizer = SamplingParams(max_new_tokens=8), TOKENIZER
        self.asked: list[tuple[tuple[int, ...], SamplingParams]] = []
        self.scored: list[RewardInput] = []
        self._letter, self._fails = letter, fails or {}

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        assert sampling is not None
        number = len(self.asked)
        self.asked.append((tuple(input_ids), sampling))
        await asyncio.sleep(0)
        if number in self._fails:
            raise self._fails[number]
        ids = (*TOKENIZER.encode(said(self._letter, number), add_special_tokens=False), TOKENIZER.eos_token_id)
        values = [-0.1 * (number + 1)] * len(ids)
        spans = (VersionSpan(start=0, stop=len(ids), version=3),)
        return Generation(output_ids=ids, logprobs=values, version_spans=spans, stop_reason="stop")

    async def parse_tool_calls(self, text: str, tools: Any) -> ToolParse:
        return ToolParse(content="", calls=[ToolCall(name="add", arguments='{"a": 1}')])

    async def reward(self, value: RewardInput) -> RewardResult:
        self.scored.append(value)
        return RewardResult(value=0.25, components={"judged": 1.0})


def said(letter: str, number: int) -> str:
    """Return the answer of that number."""
    return letter + chr(ord("a") + number)


_OPENED: list[AsyncOpenAI] = []


def client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Return a client that is closed when the episodes end."""
    _OPENED.append(AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0))
    return _OPENED[-1]


async def close_clients() -> None:
    opened, _OPENED[:] = list(_OPENED), []
    for each in opened:
        await each.close()


def episodes(agent: Any, *sessions: Speaking, row: Mapping[str, Any] | None = None, **options: Any) -> list[Episode]:
    """Run an agent once for every session, side by side; close the endpoint."""

    data = row or {"prompt": "ab>"}

    async def run() -> list[Episode]:
        workflow = AgentWorkflow(AgentConfig(run="json:loads", **options), run=agent)
        try:
            async with asyncio.TaskGroup() as scope:
                calls = [scope.create_task(workflow.arun_episode(session, data)) for session in sessions]
            return [call.result() for call in calls]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await close_clients()
            await workflow.close()

    return asyncio.run(run())


def text_of(episode: Episode, number: int = 0) -> tuple[str, str]:
    """Return a trajectory's text, and that of the tokens which are trained on."""
    made = episode.trajectories[number]
    return TOKENIZER.decode(made.input_ids.tolist()), TOKENIZER.decode(made.input_ids[made.loss_mask].tolist())
