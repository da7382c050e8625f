"""A policy that says what a test wrote: environments and agents are tried without a model, in milliseconds.

Everything else is real: the endpoint, tokens, and the trajectories a run would train on.

Knows: how an answer is written, and how one episode is played.
Does not know: what is tested.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_agents.config import AgentConfig
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.data import Episode, StopReason
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.workflow import RewardInput, RewardResult

END = "<eos>"
"""What an answer ends with."""
VERSION = 3
"""The version of the policy that everything is said by."""
TEMPLATE = """\
{%- if tools %}[tools]{% for t in tools %}{{ t['function']['name'] }} {% endfor %}<eos>{% endif -%}
{%- for m in messages %}[{{ m['role'] }}]{{ m['content'] or '' }}
{%- for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments']
 if c['function']['arguments'] is string else c['function']['arguments'] | tojson }}}</tool_call>
{%- endfor %}<eos>{% endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}"""
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

Row = Mapping[str, Any]  # Any: the data set's
Answers = Sequence[str] | Callable[[str, int], str]
"""Answers one after the other; or a function from the prompt's text and the number of the answer."""
Agent = Callable[[dict[str, Any], str, str], Any]  # Any: as the workflow `agent` calls it


def call(name: str, **arguments: object) -> str:
    """Return a call of a tool as the policy writes it; several stand one behind the other.

    Example: call("add", a=1, b=2)
    """
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@frozen(kw_only=True)
class Played:
    """One episode. `text` is its last trajectory, with what is trained on between < and >.

    Example: Played(reward=1.0, metrics={"turns": 1.0}, text="[user]1 + 1?<eos>[assistant]<2<eos>>", num_trajectories=1)
    """

    reward: float
    metrics: Mapping[str, float]
    text: str
    num_trajectories: int


def played(run: Agent, row: Row, answers: Answers) -> Played:
    """Return what becomes of a row when an agent, `run(row, base_url, api_key)`, plays it with a policy that says so.

    Raises:
        EpisodeFailed: the agent asked nothing, or returned no reward.
        Anything: what the agent raised.
    """
    workflow = AgentWorkflow(AgentConfig(run=f"{__name__}:played"), run=run)
    ((made, text),) = _runner().run(_play(workflow, [(row, answers)]))
    reward, number = made.trajectories[-1].reward, len(made.trajectories)
    return Played(reward=reward, metrics=dict(made.metrics), text=text, num_trajectories=number)


@functools.cache
def _runner() -> asyncio.Runner:
    """Return one event loop for every agent that is played: a client made at the top of a file belongs to one."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def episode(workflow: AgentWorkflow, row: Row, answers: Answers) -> tuple[Episode, str]:
    """Return one episode of a row, and the text of its last trajectory with what is trained on in < and >."""
    return episodes(workflow, [(row, answers)])[0]


def episodes(workflow: AgentWorkflow, cases: Sequence[tuple[Row, Answers]]) -> list[tuple[Episode, str]]:
    """Return the episodes of rows, side by side."""
    return asyncio.run(_play(workflow, cases))


async def _play(workflow: AgentWorkflow, cases: Sequence[tuple[Row, Answers]]) -> list[tuple[Episode, str]]:
    try:
        sessions = [Scripted(answers, name=str(number)) for number, (_, answers) in enumerate(cases)]
        calls = [workflow.arun_episode(each, row) for each, (row, _) in zip(sessions, cases, strict=True)]
        return [(made, text_of(made)) for made in await asyncio.gather(*calls)]
    finally:
        await workflow.close()


def text_of(made: Episode) -> str:
    """Return the text of the last trajectory; what is trained on stands in < and >."""
    last, text, trained = made.trajectories[-1], "", False
    for token, mask in zip(last.input_ids.tolist(), last.loss_mask.tolist(), strict=True):
        if mask != trained:
            text += "<" if mask else ">"
            trained = mask
        text += byte_tokenizer().decode([token])
    return text + (">" if trained else "")


@functools.cache
def byte_tokenizer() -> Any:
    """Return a tokenizer whose tokens are bytes, and an end, with a chat template. Any: transformers' own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token="<pad>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Scripted:
    """Satisfies `contract.Session`: says what is written."""

    def __init__(self, answers: Answers, *, name: str = "0") -> None:
        """Hold the answers; `asked` will be the text of every prompt."""
        self.task_id, self.group_id = TaskId(f"train/0/{name}"), GroupId(f"train/0/{name}")
        self.sampling, self.tokenizer = SamplingParams(max_new_tokens=512), byte_tokenizer()
        self.image_token_id: int | None = None
        self.asked: list[str] = []
        self._answers = answers

    async def generate(self, input_ids: Sequence[int], sampling: SamplingParams | None = None, **_: Any) -> Generation:
        """Say the next answer. Any: what else a session is asked for."""
        self.asked.append(self.tokenizer.decode(list(input_ids)))
        await asyncio.sleep(0)
        number = len(self.asked) - 1
        said = self._answers(self.asked[-1], number) if callable(self._answers) else self._answers[number]
        ids = (*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id)
        spans = (VersionSpan(start=0, stop=len(ids), version=VERSION),)
        return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), version_spans=spans, stop_reason=StopReason.STOP)

    async def parse_tool_calls(self, text: str, tools: object) -> ToolParse:
        """Read the calls that `call` writes."""
        said = [json.loads(each) for each in _CALL.findall(text)]
        calls = [ToolCall(name=each["name"], arguments=json.dumps(each["arguments"])) for each in said]
        content = re.sub(rf"<tool_call>.*|{END}", "", text, flags=re.DOTALL)
        return ToolParse(content=content, calls=calls)

    async def reward(self, value: RewardInput) -> RewardResult:
        """Refuse: what is tested here says itself what it is worth."""
        raise AssertionError("the agent told no reward, and here is no rollout.reward to judge its last answer")
