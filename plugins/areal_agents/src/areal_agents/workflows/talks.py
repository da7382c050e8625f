"""From rows to conversations with the policy: what the workflows of this package share.

Knows: columns of rows, the renderer that the options name.
Does not know: what is said after the first question, or what it is worth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import Factory, field, frozen

from areal_agentic.conversation import Conversation
from areal_agentic.renderer import BoundRenderer, Message, Renderer, Tool
from areal_core.contract.errors import DatasetError
from areal_core.contract.workflow import Session, Tokenizer
from areal_core.plugins.registry import current_registry
from areal_tasks.datasets.forms import as_messages, checked_messages

_COLUMNS = ("messages", "prompt")
_OPTIONS = "rollout.workflow.options.renderer_options"


@frozen(kw_only=True)
class TalkConfig:
    """Options of every workflow that talks to the policy in turns.

    Example: TalkConfig(renderer="auto", system="Answer with a number.")
    """

    renderer: str = "auto"
    """The plugin that writes conversations as tokens: the model's family, or `auto`, which finds it."""
    renderer_options: Mapping[str, Any] = field(
        default=Factory(dict), metadata={"role": "renderer", "named_by": "renderer"}
    )  # Any: the renderer's own
    """Options of that renderer, for example {enable_thinking: false}."""
    keep_thoughts: bool = False
    """Go on with the exact tokens of a conversation also where the chat template leaves thoughts of earlier turns
    out; else it begins a new trajectory there."""
    system: str = ""
    """A system message put before the conversation."""


class Talks:
    """Begins the conversations of a run. One for each workflow; its renderer is bound once, to the run's tokenizer."""

    def __init__(self, config: TalkConfig) -> None:
        """Build the renderer; called while the workflow is built."""
        made = current_registry().build("renderer", config.renderer, config.renderer_options, _OPTIONS)
        assert isinstance(made, Renderer), f"{config.renderer} is no renderer"
        self._config, self._made = config, made
        self._bound: tuple[Tokenizer, BoundRenderer] | None = None

    def renderer(self, tokenizer: Tokenizer) -> BoundRenderer:
        """Return the renderer of the run's tokenizer.

        Raises:
            DatasetError: this renderer does not write conversations as the model's own template does.
        """
        if self._bound is None or self._bound[0] is not tokenizer:
            self._bound = tokenizer, self._made.bind(tokenizer)
        return self._bound[1]

    def named(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer of the run's tokenizer, and how it was asked for: 'qwen3 (auto)'.

        Raises:
            DatasetError: as above.
        """
        return told_of(self.renderer(tokenizer), self._config.renderer)

    def asked(self, row: Mapping[str, Any], where: str) -> list[Message]:
        """Return the conversation that a row begins with. Any: the data set decides what a row holds.

        Raises:
            DatasetError: the row has neither `messages` nor `prompt`, or no conversation there.
        """
        column = next((name for name in _COLUMNS if name in row), None)
        if column is None:
            raise DatasetError(
                f"the row of {where} has no column {' or '.join(map(repr, _COLUMNS))}",
                why=f"it has: {', '.join(map(repr, row)) or 'nothing'}",
                fix="map one with `data.options.columns`, or name another workflow",
            )
        read = checked_messages if column == "messages" else partial(as_messages, role="user")
        return [*self._system(), *read(row[column], column=column, where=f"the row of {where}")]

    def begin(self, session: Session, row: Mapping[str, Any], tools: Sequence[Tool] = ()) -> Conversation:
        """Begin the conversation of a row. Any: as above."""
        return self.about(session, *self.asked(row, session.task_id), tools=tools)

    def about(self, session: Session, *messages: Message, tools: Sequence[Tool] = ()) -> Conversation:
        """Begin a conversation with these messages."""
        renderer, keep = self.renderer(session.tokenizer), self._config.keep_thoughts
        return Conversation(session, renderer, list(messages), tools=tools, keep_thoughts=keep)

    def prompt_ids(
        self, tokenizer: Tokenizer, row: Mapping[str, Any], where: str, tools: Sequence[Tool] = ()
    ) -> list[int]:
        """Return the tokens of a row's first request. Any: as above."""
        return self.renderer(tokenizer).render(self.asked(row, where), tools=tools)

    def _system(self) -> list[Message]:
        return [{"role": "system", "content": self._config.system}] if self._config.system else []


def told_of(renderer: BoundRenderer, asked: str) -> str:
    """Return what people are told of a renderer: the name it has once it is bound, and what was asked for."""
    name = str(getattr(renderer, "name", asked))
    return name if name == asked else f"{name} ({asked})"


def user(template: str, parts: Mapping[str, Any]) -> Message:
    """Return a message of the user: a template, each {name} of `parts` put in. Any: columns of a row."""
    text = re.sub(r"\{(\w+)\}", lambda match: str(parts.get(match[1], match[0])), template)
    return {"role": "user", "content": text}
