"""A renderer in one file: each message is a line that begins with who said it.

    areal train run.yaml imports=[examples/renderers/lines.py] rollout.workflow.options.renderer=lines
    areal conformance run --backend lines --role renderer --import examples/renderers/lines.py

For a base model that was taught this form; docs/how-to/write-a-renderer.md explains it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from areal_agentic.renderer import Answer, BoundRenderer, Message, Tool
from areal_core import backend
from areal_core.contract.errors import DatasetError
from areal_core.plugins.manifest import Manifest

ROLES = ("system", "user", "assistant")
MANIFEST = Manifest(
    role="renderer", name="lines", contract=(1, 0), factory="lines:Lines", summary="a line for each message"
)


@backend(MANIFEST)
class Lines:
    """Writes `user: Hello` and ends each answer with the model's end token."""

    def bind(self, tokenizer: Any) -> BoundRenderer:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer: one that has no way of its own."""
        if tokenizer.chat_template:
            raise DatasetError("the renderer `lines` is for base models", why="this one has a chat template")
        return BoundLines(tokenizer)


class BoundLines:
    """The renderer of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:  # Any: as above
        self._tokenizer = tokenizer
        self.stop_token_ids = frozenset({int(tokenizer.eos_token_id)})
        added = tokenizer.added_tokens_decoder.values()
        controls = [re.escape(str(one)) for one in added if one.special or "|" in str(one)]
        self._controls = re.compile(f"({'|'.join(controls)})")

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return a line for each message, and the beginning of the answer."""
        if tools:
            raise DatasetError("the renderer `lines` has no place for tools", why="the model was not taught any")
        lines = [token for message in messages for token in self._line(message)]
        return lines + self._ids("assistant: ") if ask else lines

    def bridge(
        self,
        history: Sequence[Message],
        output_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        keep_thoughts: bool = False,
    ) -> list[int] | None:
        """Return the end of an answer that has none, and the lines that follow it."""
        if any(message.get("role") == "assistant" for message in messages):
            raise DatasetError("an answer cannot follow an answer", why="answers come from the engine")
        ended = bool(output_ids) and output_ids[-1] in self.stop_token_ids
        return ([] if ended else [*self.stop_token_ids]) + self.render(messages, tools=tools)

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read everything but the end as content."""
        said = [token for token in output_ids if token not in self.stop_token_ids]
        return Answer(content=self._tokenizer.decode(said, clean_up_tokenization_spaces=False))

    def _line(self, message: Message) -> list[int]:
        role, content = message.get("role"), message.get("content")
        if role not in ROLES or not isinstance(content, str) or message.get("tool_calls"):
            raise DatasetError(
                f"the renderer `lines` has no place for {dict(message)}", why=f"it writes text of {', '.join(ROLES)}"
            )
        if role == "assistant":  # in three parts, as it came to be: the prompt, the answer, its end
            return self._ids("assistant: ") + self._ids(content) + [*self.stop_token_ids]
        return self._ids(f"{role}: ") + self._ids(content) + self._ids("\n")

    def _ids(self, text: str) -> list[int]:
        """Return the tokens of a text; what reads like a control token is cut behind its first letter."""
        parts: list[str] = []
        for number, piece in enumerate(self._controls.split(text)):
            parts += (piece[:1], piece[1:]) if number % 2 else (piece,)
        return [token for part in parts for token in self._tokenizer.encode(part, add_special_tokens=False)]
