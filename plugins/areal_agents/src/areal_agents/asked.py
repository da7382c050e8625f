"""What is asked for and what is answered, whichever API it came by.

Knows: the few things an answer of the policy depends on.
Does not know: field names of an API, HTTP, sessions.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from areal_agentic.renderer import Message, Tool
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, Structure


@frozen(kw_only=True)
class Ask:
    """One request for answers.

    Example: Ask(limit=64, stops=("\\n",), n=2)
    """

    limit: int | None = None
    """Output tokens at most, below the run's own bound."""
    stops: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    n: int = 1
    structure: Structure | None = None
    logprobs: bool = False
    """Whether each token is told as text."""


@frozen(kw_only=True)
class ChatAsk(Ask):
    """A conversation to go on with."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


@frozen(kw_only=True)
class TextAsk(Ask):
    """A text, or tokens, to go on with."""

    prompt: str | Sequence[int]


@frozen(kw_only=True)
class Called:
    """A call of a tool under the id by which its result is told.

    Example: Called(name="add", arguments='{"a": 1}')
    """

    name: str
    arguments: str
    id: str = field(factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@frozen(kw_only=True)
class Reply:
    """One answer as it is told.

    Example: Reply(generation=generation, content="It is 3.", thoughts="One and two.")
    """

    generation: Generation
    content: str
    thoughts: str = ""
    calls: tuple[Called, ...] = field(default=(), converter=tuple[Called, ...])
    stop: str | None = None
    """The text of `stops` that ended it, which is not told."""
    pieces: Sequence[str] = ()
    """Each token as text, where log-probs were asked for."""

    @property
    def cut(self) -> bool:
        """Return whether it ended because it was long enough."""
        return self.generation.stop_reason not in (StopReason.STOP, StopReason.TOOL_CALLS)

    @property
    def message(self) -> dict[str, Any]:  # Any: JSON
        """Return it as the message that an agent puts into its history."""
        made: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thoughts:
            made["reasoning_content"] = self.thoughts
        if self.calls:
            made["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return made


@frozen(kw_only=True)
class Replies:
    """The answers to one request."""

    num_prompt: int
    """Tokens of the prompt."""
    replies: Sequence[Reply]
    id: str = field(factory=lambda: uuid.uuid4().hex)

    @property
    def first(self) -> Reply:
        """Return the only answer, for APIs that give one."""
        return self.replies[0]

    @property
    def num_output(self) -> int:
        """Return how many tokens were generated."""
        return sum(len(reply.generation.output_ids) for reply in self.replies)
