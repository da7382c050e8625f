"""Options of the endpoint `http`.

Knows: names and ranges.
Does not know: how an agent is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen

from areal_agentic.endpoint import Export


@frozen(kw_only=True)
class EndpointConfig:
    """How an endpoint turns chats into tokens, and answers into trajectories.

    Example: EndpointConfig(renderer="qwen3", keep_thoughts=True)
    """

    system: str = ""
    """A system message put before every chat; one of the agent's own comes after it."""
    template: Mapping[str, Any] = Factory(dict)  # Any: the template's own variables
    """Given to the chat template, for switches of other names than the next one."""
    enable_thinking: bool | None = None
    """Whether the model is to think first, for chat templates with such a switch. None leaves it to the template."""
    add_special_tokens: bool = True
    """Whether a `prompt` of completions gets the special tokens that the tokenizer puts around a text."""
    renderer: str = "auto"
    """The plugin that writes chats as tokens: the model's family, or `auto`, which finds it."""
    renderer_options: Mapping[str, Any] = Factory(dict)  # Any: the renderer's own
    """Options of that renderer."""
    keep_thoughts: bool = False
    """Go on with the exact tokens of a conversation also where the chat template leaves thoughts of earlier turns
    out; else it begins a new trajectory there."""
    export: Export = field(default=Export.CONCATENATED, converter=Export)
    """`concatenated`: a conversation is one trajectory; `individual`: each answer is one."""
