"""A session whose policy says what a script says, and one episode of a workflow with it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
TOKENIZER.chat_template = """\
{%- if tools %}[tools]{% for t in tools %}{{ t['function']['name'] }} {% endfor %}<eos>{% endif -%}
{%- for m in messages %}[{{ m['role'] }}]{{ m['content'] or '' }}
{%- for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments']
 if c['function']['arguments'] is string else c['function']['arguments'] | tojson }}}</tool_call>
{%- endfor %}<eos>{% endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}"""

Script = Callable[[str, int], str]
"""From the prompt's text and the number of the answer to the answer."""


def call(name: str, **arguments: object) -> str:
    """Return a tool call as the policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Speaking:
    """Says what the script says, at version 3; keeps the text of every prompt."""

    image_token_id = None

    def __init__(self, script: Script | Sequence[str], name: str = "0") -> None:
        self.task_id, self.group_id = TaskId(f"train/0/{name}"), GroupId(f"train/0/{name}")
        self.sampling, self.tokenizer = SamplingParams(max_new_tokens=512), TOKENIZER
        self.heard: list[str] = []
        self._script = script if callable(script) else lambda _, number: script[number]

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None, **more: Any) -> Generation:
        self.heard.append(TOKENIZER.decode(list(input_ids)))
        await asyncio.sleep(0)
        text = self._script(self.heard[-1], len(self.heard) - 1)
        ids = (*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id)
        spans = (VersionSpan(start=0, stop=len(ids), version=3),)
        return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), version_spans=spans, stop_reason="stop")

    async def parse_tool_calls(self, text: str, tools: Any) -> ToolParse:
        said = [json.loads(each) for each in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)]
        calls = [ToolCall(name=each["name"], arguments=json.dumps(each["arguments"])) for each in said]
        return ToolParse(content=re.sub(r"<tool_call>.*|<eos>", "", text, flags=re.DOTALL), calls=calls)

    async def reward(self, value: RewardInput) -> RewardResult:
        raise AssertionError("an environment scores its own episodes")


def episode(workflow: AgentWorkflow, row: Mapping[str, Any], script: Script | Sequence[str]) -> tuple[Episode, str]:
    """Return one episode of a row, and the text of its last trajectory with what is trained on in < and >."""
    return episodes(workflow, [(row, script)])[0]


def episodes(
    workflow: AgentWorkflow, cases: Sequence[tuple[Mapping[str, Any], Script | Sequence[str]]]
) -> list[tuple[Episode, str]]:
    """Return the episodes of rows, side by side."""

    async def run() -> list[Episode]:
        try:
            sessions = [Speaking(script, str(number)) for number, (_, script) in enumerate(cases)]
            calls = [workflow.arun_episode(each, row) for each, (row, _) in zip(sessions, cases, strict=True)]
            return list(await asyncio.gather(*calls))
        finally:
            await workflow.close()

    return [(each, text_of(each)) for each in asyncio.run(run())]


def text_of(made: Episode) -> str:
    """Return the text of the last trajectory; what is trained on stands in < and >."""
    last, text, trained = made.trajectories[-1], "", False
    for token, mask in zip(last.input_ids.tolist(), last.loss_mask.tolist(), strict=True):
        if mask != trained:
            text += "<" if mask else ">"
            trained = mask
        text += TOKENIZER.decode([token])
    return text + (">" if trained else "")
