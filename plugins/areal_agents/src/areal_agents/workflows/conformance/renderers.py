"""Renderers for adapters: `plain`, and in its outputs what no text of the suite says.

The suite's policies say letters: no call, no thought and no score is among them. These read some all the same.

Knows: how letters are read as more than that, and how a workflow is built with such a renderer.
Does not know: any workflow, or any check.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import define, frozen

from areal_agentic.renderer import Answer, BoundRenderer, Message, Tool
from areal_agents.workflows.conformance.sandboxes import TellingSandboxes
from areal_conformance.adapter import Case
from areal_core.contract.optional import ToolCall
from areal_core.plugins.registry import Registry
from areal_renderers.plain import PlainRenderer

Reads = Callable[[str, Sequence[Tool]], Answer]


def _calling(text: str, tools: Sequence[Tool]) -> Answer:
    """Read `name(JSON)` as that call, several between ` & ` as several, other texts as calls of the first tool.

    These have the first and the last letter of the text.
    """
    if not tools:
        return Answer(content=text)
    written = [re.fullmatch(r"(\w+)\((.*)\)", part) for part in text.split(" & ")]
    if all(written):
        return Answer(content=text, calls=[ToolCall(name=one[1], arguments=one[2]) for one in written if one])
    function = tools[0]["function"]
    parameter = next(iter(function["parameters"]["properties"]))
    given = [json.dumps({parameter: letter}) for letter in dict.fromkeys((text[:1], text[-1:]))]
    return Answer(content=text, calls=[ToolCall(name=function["name"], arguments=one) for one in given])


def _thinking(text: str, tools: Sequence[Tool]) -> Answer:
    """Read the first letter of a text as a thought, which is left out of later turns."""
    return Answer(content=text[1:], thoughts=text[:1])


def _grading(text: str, tools: Sequence[Tool]) -> Answer:
    """Read a score where a text has no figure."""
    return Answer(content=text if any(map(str.isdigit, text)) else f"{text} score: 6.25")


READS: Mapping[str, Reads] = MappingProxyType({"calling": _calling, "thinking": _thinking, "grading": _grading})
"""Name of a renderer -> how it reads outputs."""


@frozen
class Speaking:
    """Role `renderer`: `plain`, whose outputs are read otherwise."""

    name: str

    def bind(self, tokenizer: Any) -> BoundRenderer:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer."""
        plain = PlainRenderer().bind(tokenizer)
        return BoundSpeaking(self.name, plain, plain.stop_token_ids)


@define
class BoundSpeaking:
    """Writes tools as their names, in messages of their own; has no bridge where thoughts are left out."""

    name: str
    plain: BoundRenderer
    stop_token_ids: frozenset[int]

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return the tokens of a conversation; see `areal_agentic.renderer`."""
        told: list[Message] = [{"role": "system", "content": f"{tool['function']['name']}-"} for tool in tools]
        return self.plain.render([*told, *messages], ask=ask)

    def bridge(
        self,
        history: Sequence[Message],
        output_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        keep_thoughts: bool = False,
    ) -> list[int] | None:
        """Return what follows an answer; see `areal_agentic.renderer`."""
        left_out = self.parse(output_ids, tools=tools).thoughts and not keep_thoughts
        return None if left_out else self.plain.bridge(history, output_ids, messages)

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read an output; see `areal_agentic.renderer`."""
        return READS[self.name](self.plain.parse(output_ids).content, tools)


def built(name: str) -> Callable[[Case], Any]:
    """Return what builds a workflow that finds these renderers, and sandboxes that tell. Any: a workflow."""
    registry = Registry(
        entries={
            **{("renderer", one): functools.partial(Speaking, one) for one in READS},
            ("sandbox", "telling"): TellingSandboxes,
        }
    )
    return lambda case: registry.build("workflow", name, case.options)
