"""The renderer `plain`: texts one after the other, for base models without a chat template.

Knows: what stands around a message of each role, and that each part is encoded on its own.
Does not know: chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen, validators

from areal_agentic.renderer import Answer, Message, Tool
from areal_core.contract.errors import DatasetError
from areal_renderers.messages import content_of, refuse_answers
from areal_renderers.ordinary import Encoder

ROLES = ("system", "user", "assistant", "tool")
_texts = validators.deep_mapping(validators.in_(ROLES), validators.instance_of(str))


@frozen(kw_only=True)
class PlainConfig:
    """Options of `plain`. By default contents stand as they are, and an answer ends with the tokenizer's end token.

    Example: PlainConfig(prefixes={"user": "Question: ", "assistant": "Answer:"}, separator="\\n")
    """

    prefixes: Mapping[str, str] = field(factory=dict, validator=_texts)
    """Role -> text before its contents; that of the assistant opens an answer."""
    suffixes: Mapping[str, str] = field(factory=dict, validator=_texts)
    """Role -> text behind its contents; that of the assistant stands in place of the end token."""
    separator: str = ""
    """Text between two messages."""
    add_special_tokens: bool = True
    """Whether a conversation begins with the token that the tokenizer begins texts with, if it has one."""


class PlainRenderer:
    """Role `renderer`, contract 1.0."""

    def __init__(self, config: PlainConfig | None = None) -> None:
        """Hold the options."""
        self._config = config or PlainConfig()

    def bind(self, tokenizer: Any) -> BoundPlain:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer; there is nothing to prove: each part is encoded on its own.

        Raises:
            DatasetError: answers would have no end: the tokenizer has no end token, and the options give no suffix.
        """
        if getattr(tokenizer, "eos_token_id", None) is None and not self._config.suffixes.get("assistant"):
            raise DatasetError(
                "the renderer `plain` does not know where an answer ends",
                why="the tokenizer has no end token",
                fix="give a suffix of the role 'assistant', or set eos_token in tokenizer_config.json",
            )
        return BoundPlain(tokenizer, self._config)


class BoundPlain:
    """Contents as tokens, each encoded on its own, so that what follows never changes what stood before."""

    name = "plain"

    def __init__(self, tokenizer: Any, config: PlainConfig) -> None:  # Any: as above
        self._config, self._encoder = config, Encoder(tokenizer)
        end = tokenizer.eos_token_id
        self.stop_token_ids: frozenset[int] = frozenset(() if end is None else (int(end),))
        suffix = config.suffixes.get("assistant")
        self._close = [int(end)] if suffix is None else self._encoder.ids(suffix)
        self._suffix = suffix or ""
        begin = tokenizer.bos_token_id
        begins = config.add_special_tokens and begin is not None
        self._begin = [int(begin)] if begins and tokenizer.encode("")[:1] == [begin] else []

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return the tokens of a conversation from its beginning; see `areal_agentic.renderer`."""
        _refuse_tools(tools)
        ids = [*self._begin]
        for place, message in enumerate(messages):
            ids += self._separator(place > 0) + self._message(message)
        if ask:
            ids += self._separator(bool(messages)) + self._before("assistant")
        return ids

    def bridge(
        self,
        history: Sequence[Message],
        output_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        keep_thoughts: bool = False,
    ) -> list[int] | None:
        """Return what follows an answer up to the place of the next; see `areal_agentic.renderer`."""
        _refuse_tools(tools)
        refuse_answers(messages)
        ids = self._rest_of_close(output_ids)
        for message in messages:
            ids += self._separator(True) + self._message(message)
        return ids + self._separator(True) + self._before("assistant")

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read an output: all of it is content, without its end."""
        ids = list(output_ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return Answer(content=self._encoder.text(ids).removesuffix(self._suffix))

    def _message(self, message: Message) -> list[int]:
        role = message.get("role")
        if role not in ROLES or message.get("tool_calls"):
            raise DatasetError(
                f"the renderer `plain` has no place for {'calls of tools' if role in ROLES else f'the role {role!r}'}",
                why=f"it writes contents of the roles {', '.join(ROLES)} one after the other",
                fix="write it into a content yourself, or use a chat model",
            )
        content = self._encoder.written(content_of(message))
        if role == "assistant":
            return self._before(role) + self._encoder.ids(content) + self._close
        before, behind = self._config.prefixes.get(role, ""), self._config.suffixes.get(role, "")
        return self._encoder.ids(before + content + behind)

    def _before(self, role: str) -> list[int]:
        return self._encoder.ids(self._config.prefixes.get(role, ""))

    def _separator(self, wanted: bool) -> list[int]:
        return self._encoder.ids(self._config.separator) if wanted else []

    def _rest_of_close(self, output_ids: Sequence[int]) -> list[int]:
        """Return what closes an answer; what is left of it where the answer closed itself."""
        ids, close = list(output_ids), self._close
        if ids[-len(close) :] == close:
            return []
        if ids and ids[-1] in self.stop_token_ids:
            return close[close.index(ids[-1]) + 1 :] if ids[-1] in close else []
        return [*close]


def _refuse_tools(tools: Sequence[Tool]) -> None:
    if tools:
        raise DatasetError(
            "the renderer `plain` has no place for tools",
            why="a model without a chat template was not taught a way of writing them",
            fix="tell of them in a message, or use a chat model",
        )
