"""The renderer `template`: any model with a chat template, and the machinery of every family.

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
from areal_renderers.config import ChatOptions, TemplateConfig
from areal_renderers.messages import Json, content_of
from areal_renderers.ordinary import Encoder
from areal_renderers.reading import CALLS, CLOSE, OPEN, THOUGHTS, ReadCalls, Reading


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
    closing: str = f"\n{CLOSE}\n\n"
    """What closes thoughts that an answer left open."""


class TemplateRenderer:
    """Role `renderer`, contract 1.0: reads content only, unless the options name ways of thoughts and calls."""

    def __init__(self, config: TemplateConfig | None = None) -> None:
        """Hold the options."""
        self._config = config or TemplateConfig()

    def bind(self, tokenizer: Any) -> BoundTemplate:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer.

        Raises:
            DatasetError: it has no chat template.
        """
        config = self._config
        style = Style(name="template", thoughts=THOUGHTS[config.thoughts], calls=CALLS[config.calls])
        return BoundTemplate(tokenizer, style, config)


class BoundTemplate:
    """The template of one tokenizer as a renderer."""

    def __init__(self, tokenizer: Any, style: Style, options: ChatOptions) -> None:  # Any: as above
        self.name, self._style = style.name, style
        self._encoder = Encoder(tokenizer)
        self.template = ChatTemplate(tokenizer, self._encoder, options.variables)
        self._closers = self.template.closers()
        end = tokenizer.eos_token_id
        known = [
            self._encoder.specials[text] for text in (*self._closers, *style.stops) if text in self._encoder.specials
        ]
        self.stop_token_ids: frozenset[int] = frozenset(known + ([] if end is None else [int(end)]))
        asked = self.template.text([{"role": "user", "content": "."}], (), ask=True)
        self._opened = asked.rstrip().endswith(OPEN)

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return the tokens of a conversation from its beginning; see `areal_agentic.renderer`."""
        return self._encoder.ids(self.template.text(messages, tools, ask=ask))

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read an output: thoughts and calls in the ways of the family, all else is content."""
        return self._read(output_ids, tools).answer

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
        if any(message.get("role") == "assistant" for message in messages):
            raise DatasetError("an answer cannot follow an answer", why="bridge takes messages of user, tool or system")
        reading = self._read(output_ids, tools)
        try:
            rest = self._strict(history, output_ids, reading, messages, tools)
            if rest is None and keep_thoughts:
                rest = self._without_thoughts(history, reading, messages, tools)
        except DatasetError:  # the template has no place for this answer: whoever renders it anew is told so
            return None
        return None if rest is None else self._joined(output_ids, reading, rest)

    def _read(self, output_ids: Sequence[int], tools: Sequence[Tool]) -> Reading:
        reading = self._style.thoughts(self._said(output_ids), self._opened)
        return evolve(reading, answer=self._style.calls(reading.answer, tools)) if reading.closed else reading

    def _said(self, output_ids: Sequence[int]) -> str:
        """Return the text of an output without what ended it."""
        ids = list(output_ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._encoder.text(ids)

    def _strict(
        self,
        history: Sequence[Message],
        output_ids: Sequence[int],
        reading: Reading,
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> str | None:
        """Return the text behind the answer if the template writes the prompt and the answer as they are."""
        prompt = self.template.text(history, tools, ask=True)
        answer = reading.answer.message
        whole = self.template.text([*history, answer, *messages], tools, ask=True)
        if not whole.startswith(prompt):
            return None
        said = prompt + self._encoder.written(self._said(output_ids))
        if whole.startswith(said) and self._closes(whole[len(said) :]):
            return whole[len(said) :]
        if self.template.text([*history, answer], tools, ask=False).startswith(said):
            return None  # alone it would be written as it is, and no longer with what follows
        behind = self._behind(whole, len(prompt))
        if behind is None:
            return None
        body = whole[len(prompt) : len(whole) - len(behind)]
        if reading.block and OPEN not in body and not prompt.rstrip().endswith(OPEN):
            return None
        silent = evolve(reading.answer, thoughts="").message
        if reading.answer.thoughts and self.template.text([*history, silent, *messages], tools, ask=True) == whole:
            return None
        return behind

    def _without_thoughts(
        self, history: Sequence[Message], reading: Reading, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> str | None:
        """Return the text behind the answer in a conversation in which nobody thought."""
        past = [self._silent(message) for message in history]
        answer = self._silent(reading.answer.message)
        before = self.template.text(past, tools, ask=False)
        whole = self.template.text([*past, answer, *messages], tools, ask=True)
        return self._behind(whole, len(before)) if whole.startswith(before) else None

    def _silent(self, message: Message) -> Json:
        left = {key: value for key, value in message.items() if key != "reasoning_content"}
        if message.get("role") == "assistant":
            left["content"] = self._style.thoughts(content_of(message), False).answer.content
        return left

    def _closes(self, text: str) -> bool:
        return not self._closers or text.startswith(tuple(self._closers))

    def _behind(self, whole: str, place: int) -> str | None:
        """Return the text from the first token after a place that closes an answer."""
        found = [at for at in (whole.find(closer, place) for closer in self._closers) if at >= 0]
        return whole[min(found) :] if found else None

    def _joined(self, output_ids: Sequence[int], reading: Reading, rest: str) -> list[int] | None:
        """Return the tokens of the rest, without the end that the answer has; None if it ended otherwise."""
        ids = self._encoder.ids(rest)
        ended = output_ids[-1] if output_ids and output_ids[-1] in self.stop_token_ids else None
        if not self._closers:
            said = self._said(output_ids)
            together = self._encoder.ids(self._encoder.written(said) + rest)
            return (
                ids
                if ended is not None or together == [*self._encoder.ids(self._encoder.written(said)), *ids]
                else None
            )
        if ended is None:
            open_thoughts = [] if reading.closed else self._encoder.ids(self._style.closing)
            return open_thoughts + ids
        return ids[1:] if ids[0] == ended else None
