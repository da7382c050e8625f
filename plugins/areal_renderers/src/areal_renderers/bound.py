"""A chat template as a renderer: the machinery of `template` and of every family.

Knows: that a conversation is the template's text, encoded, and what follows an answer in that text.
Does not know: which family a model is of (`families`), or how it was proven (`proof`).

Every bridge is checked against the template on the very conversation it is for, as text: where the template writes the
answer or what stood before it otherwise now, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen

from areal_agentic.renderer import Answer, Message, Tool
from areal_core.contract.errors import DatasetError
from areal_renderers.chat_template import ChatTemplate
from areal_renderers.config import ChatOptions
from areal_renderers.messages import Json, content_of, refuse_answers
from areal_renderers.ordinary import Encoder, plain
from areal_renderers.reading import CLOSE, OPEN, ReadCalls, Reading


@frozen(kw_only=True)
class Style:
    """How a family writes answers.

    Example: Style(name="qwen3", thoughts=think, calls=json_calls, stops=("<|endoftext|>",))
    """

    name: str
    thoughts: Callable[[str, bool], Reading]
    calls: ReadCalls
    stops: tuple[str, ...] = ()
    """Tokens that end an answer beside those that the template is seen to write."""
    end_of: Callable[[Answer], str] | None = None
    """The token behind an answer in a history, where that is not the one that ended it; `stops` are all there are then.
    None: what the template is seen to write."""
    closing: str = f"\n{CLOSE}\n\n"
    """What closes thoughts that an answer left open."""


_FUNCTION = {"name": "f", "arguments": "{}"}
_TOOL_ANSWERED: tuple[Message, ...] = (
    {"role": "user", "content": "."},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": _FUNCTION}]},
    {"role": "tool", "content": "."},
)


class BoundTemplate:
    """The template of one tokenizer as a renderer."""

    def __init__(self, tokenizer: Any, style: Style, options: ChatOptions) -> None:  # Any: as above
        self.name, self._style = style.name, style
        self._encoder = Encoder(tokenizer)
        self.template = ChatTemplate(tokenizer, self._encoder, options.variables)
        self._closers = self.template.closers()
        known = self._encoder.specials
        stops = style.stops if style.end_of else (*self._closers, *style.stops)
        end = tokenizer.eos_token_id
        self.stop_token_ids: frozenset[int] = frozenset(
            [*(known[text] for text in stops if text in known), *([] if end is None else [int(end)])]
        )
        self.opened = self._opens([{"role": "user", "content": "."}])
        """Whether the prompt opens the thoughts of an answer."""
        self._always_opened = self.opened and self._opens(_TOOL_ANSWERED)

    @property
    def controls(self) -> frozenset[str]:
        """Return the texts that no message becomes a token by."""
        return self._encoder.controls

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text of the template's."""
        return self._encoder.ids(text)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included."""
        return self._encoder.text(ids)

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return the tokens of a conversation from its beginning; see `areal_agentic.renderer`."""
        return self._encoder.ids(self.template.text(messages, tools, ask=ask))

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read an output: thoughts and calls in the ways of the family, all else is content."""
        said = self._said(output_ids)
        ended = bool(output_ids) and output_ids[-1] in self.stop_token_ids
        # Where some prompts open thoughts and some do not, an answer that ended without closing any had none.
        opened = self.opened and (self._always_opened or CLOSE in said or not ended)
        return self._reading(said, opened, tools).answer

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
        refuse_answers(messages)
        said = self._said(output_ids)
        try:
            prompt = self.template.text(history, tools, ask=True)
            reading = self._reading(said, self.opened and prompt.rstrip().endswith(OPEN), tools)
            rest = self._strict(prompt, history, said, reading, messages, tools)
            if rest is None and keep_thoughts:
                rest = self._without_thoughts(history, reading, messages, tools)
        except DatasetError:  # the template has no place for this answer: whoever renders it anew is told so
            return None
        if rest is None:
            return None
        ended = output_ids[-1] if output_ids and output_ids[-1] in self.stop_token_ids else None
        ids = self._encoder.ids(rest)
        if not self._closers:
            if ended is None:
                return self._beside(said, rest, ids)
            return ids[1:] if ids[0] == ended else ids
        if ended is None:
            return ([] if reading.closed else self._encoder.ids(self._style.closing)) + ids
        return ids[1:] if ids[0] == ended or (keep_thoughts and self._style.end_of) else None

    def _said(self, output_ids: Sequence[int]) -> str:
        """Return the text of an output without what ended it, marked where ordinary tokens spell a control token."""
        ids = list(output_ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._encoder.said(ids)

    def _reading(self, said: str, opened: bool, tools: Sequence[Tool]) -> Reading:
        reading = self._style.thoughts(said, opened)
        answer = self._style.calls(reading.answer, tools) if reading.closed else reading.answer
        return evolve(reading, answer=_unmarked(answer))

    def _opens(self, messages: Sequence[Message]) -> bool:
        try:
            return self.template.text(messages, (), ask=True).rstrip().endswith(OPEN)
        except DatasetError:
            return True  # no such prompt

    def _strict(
        self,
        prompt: str,
        history: Sequence[Message],
        said: str,
        reading: Reading,
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> str | None:
        """Return the text behind the answer, if the template writes the prompt and the answer as they are."""
        answer = reading.answer.message
        whole = self.template.text([*history, answer, *messages], tools, ask=True)
        if not whole.startswith(prompt):
            return None
        written = prompt + self._encoder.written(plain(said))
        behind = whole[len(written) :] if whole.startswith(written) else ""
        if behind and behind.startswith(self._ends(reading.answer)):
            return behind
        alone = self.template.text([*history, answer], tools, ask=False)
        if alone.startswith(written) and self._is_end(alone[len(written) :]):
            return None  # by itself it is written as it is; with what follows it is written otherwise
        found = self._behind(whole, len(prompt), reading.answer)
        if found is None or (OPEN in said and OPEN not in whole[len(prompt) : len(whole) - len(found)]):
            return None
        silent = evolve(reading.answer, thoughts="").message
        if reading.answer.thoughts and self.template.text([*history, silent, *messages], tools, ask=True) == whole:
            return None
        return found

    def _without_thoughts(
        self, history: Sequence[Message], reading: Reading, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> str | None:
        """Return the text behind the answer in a conversation in which nobody thought."""
        past = [self._silent(message) for message in history]
        answer = self._silent(reading.answer.message)
        before = self.template.text(past, tools, ask=False)
        whole = self.template.text([*past, answer, *messages], tools, ask=True)
        return self._behind(whole, len(before), reading.answer) if whole.startswith(before) else None

    def _silent(self, message: Message) -> Json:
        left = {key: value for key, value in message.items() if key != "reasoning_content"}
        if message.get("role") == "assistant":
            left["content"] = self._style.thoughts(content_of(message), False).answer.content
        return left

    def _ends(self, answer: Answer) -> tuple[str, ...]:
        """Return the tokens of which one stands behind an answer in a history; an empty text where none does."""
        return (self._style.end_of(answer),) if self._style.end_of else tuple(self._closers) or ("",)

    def _is_end(self, text: str) -> bool:
        return not text.strip() or text.startswith(tuple(self.text([token]) for token in self.stop_token_ids))

    def _behind(self, whole: str, place: int, answer: Answer) -> str | None:
        """Return the text from the first token behind a place that closes an answer."""
        found = [at for at in (whole.find(end, place) for end in self._ends(answer) if end) if at >= 0]
        return whole[min(found) :] if found else None

    def _beside(self, said: str, rest: str, ids: list[int]) -> list[int] | None:
        """Return a rest that begins with no token of its own; None if a token would lie across its border."""
        written = self._encoder.written(plain(said))
        return ids if self._encoder.ids(written + rest) == self._encoder.ids(written) + ids else None


def _unmarked(answer: Answer) -> Answer:
    calls = [evolve(call, name=plain(call.name), arguments=plain(call.arguments)) for call in answer.calls]
    return Answer(content=plain(answer.content), thoughts=plain(answer.thoughts), calls=calls)
