"""Options of the renderers that use the model's chat template.

Knows: names and defaults.
Does not know: what a template does with its variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen, validators


@frozen(kw_only=True)
class ChatOptions:
    """Options of `auto` and of every family.

    Example: ChatOptions(enable_thinking=False)
    """

    template: Mapping[str, Any] = Factory(dict)  # Any: the template's own variables
    """Given to the chat template, for example {"reasoning_effort": "low"}."""
    enable_thinking: bool | None = None
    """Whether the model is to think first, for chat templates with such a switch. None leaves it to the template."""

    @property
    def variables(self) -> dict[str, Any]:  # Any: as above
        """Return what the chat template is given."""
        switch = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**switch, **self.template}


@frozen(kw_only=True)
class TemplateConfig(ChatOptions):
    """Options of `template`.

    Example: TemplateConfig(thoughts="think", calls="json")
    """

    thoughts: str = field(default="none", validator=validators.in_(("none", "think")))
    """How the model marks its thoughts: `think` is <think>...</think>; `none` leaves them in the content."""
    calls: str = field(default="none", validator=validators.in_(("none", "json", "bare_json", "xml", "deepseek")))
    """How it writes calls of tools: `json` is {"name": .., "arguments": ..} in <tool_call>, as Qwen does; `bare_json`
    {"name": .., "parameters": ..} as the whole answer, as Llama does; `xml` keys and values in <tool_call>, as GLM;
    `deepseek` in tokens of its own; `none` leaves them in the content."""
