"""How conversations become tokens and outputs become messages: the protocol of the role `renderer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from areal_core.contract.optional import ToolCall

Message = Mapping[str, Any]
"""A message of OpenAI's chat API: `role`, `content`, and maybe `reasoning_content`, `tool_calls`, `tool_call_id`.

Any: JSON. `tool_calls` are {"type": "function", "function": {"name": ..., "arguments": JSON text or an object}}.
"""
Tool = Mapping[str, Any]
"""A tool as chat templates have it: {"type": "function", "function": {"name": ..., "parameters": {...}}}. Any: JSON."""


@frozen(kw_only=True)
class Answer:
    """An output read as a message of the assistant.

    Example: Answer(content="It is 3.", thoughts="One and two.", calls=(ToolCall(name="add", arguments='{"a": 1}'),))
    """

    content: str
    thoughts: str = ""
    calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])

    @property
    def message(self) -> dict[str, Any]:  # Any: JSON
        """Return it as a message that `render` takes, calls with their arguments as JSON text."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thoughts:
            message["reasoning_content"] = self.thoughts
        if self.calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
            message["tool_calls"] = [{"type": "function", "function": each} for each in functions]
        return message


@runtime_checkable
class Renderer(Protocol):
    """Role `renderer`, contract 1.0: one model's way of writing conversations. Pure functions; no state between calls.

    Built by its factory as factory(config); `bind` then gives it the run's tokenizer, once, in the controller.
    """

    def bind(self, tokenizer: Any) -> BoundRenderer:
        """Return the renderer of a tokenizer (a Hugging Face one, hence Any), proven on it or refused.

        Raises:
            DatasetError: this renderer does not write conversations as the model's own chat template does. `why` shows
                a conversation on which they differ; or there is no template, and this renderer needs one.
        """


@runtime_checkable
class BoundRenderer(Protocol):
    """A renderer with its tokenizer. Called from the controller's event loop: fast, never blocking."""

    stop_token_ids: frozenset[int]
    """Tokens that end an answer of this family."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return the tokens of a conversation from its beginning; `ask` opens the answer of the assistant.

        The same as the model's own chat template gives, text encoded, for every conversation that `bind` vouches for.

        Raises:
            DatasetError: the family has no place for a role, a content or an order of messages; names it.
        """

    def bridge(
        self,
        history: Sequence[Message],
        output_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        keep_thoughts: bool = False,
    ) -> list[int] | None:
        """Return what follows an answer up to the place where the next one begins, so that nothing is encoded again.

        Law: with p = render(history, tools), if output_ids are what the template writes behind p for the answer
        a = parse(output_ids), then p + output_ids + bridge(...) == render([*history, a, *messages], tools). The bridge
        begins with whatever closes an answer that did not close itself (cut by length, or its end token left out).

        Args:
            history: the conversation that was answered, up to the question.
            output_ids: the answer's exact tokens, as the engine gave them.
            messages: what follows the answer: of the roles user, tool or system; never the assistant.
            keep_thoughts: append also where the template leaves thoughts of earlier turns out; the law then holds but
                for those thoughts.

        Returns:
            None where no such tokens exist, as where the template would leave the answer's thoughts out now: the
            conversation has to be rendered anew and begins a new trajectory.
        """

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read an output. Never raises: what cannot be read as thoughts or a call is content, as it stands."""
