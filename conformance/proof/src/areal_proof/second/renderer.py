"""A second renderer: whatever the model's template writes, found in its text; no family is known.

A bridge is cut out of the whole conversation's text, behind the place where the answer stands in it.

Knows: how texts of one template are compared; thoughts and calls as ChatML models write them.
Does not know: what stands between two messages: the template tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from areal_agentic.renderer import Answer, Message, Tool
from areal_core.contract.errors import DatasetError
from areal_core.contract.optional import ToolCall

_THOUGHTS = re.compile(r"\A<think>\n?(.*?)(?:\n?</think>\n*|\Z)", re.DOTALL)
_CALLS = re.compile(r"\n?<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_QUESTION: Message = {"role": "user", "content": "q"}
_ROLES = ("system", "user", "assistant", "tool")
_STANDS_FOR = 0x10F000
"""The first of the letters that stand for texts of control tokens; nobody may use them for anything else."""


@frozen(kw_only=True)
class SecondRendererConfig:
    """Nothing to choose."""


class SecondRenderer:
    """Role `renderer`, contract 1.0. `bound` is the class of what it gives."""

    bound: type[SecondBound]

    def __init__(self, config: SecondRendererConfig | None = None) -> None:
        self.config = config or SecondRendererConfig()

    def bind(self, tokenizer: Any) -> SecondBound:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer; it needs a template that ends an answer with a token of its own."""
        if not getattr(tokenizer, "chat_template", None):
            raise DatasetError("the renderer `second` needs a chat template", why="the tokenizer has none")
        bound = self.bound(tokenizer)
        bound.end = bound.end_of_answers()
        own = tokenizer.eos_token_id
        bound.stop_token_ids = frozenset({bound.end, *([] if own is None else [own])})
        return bound


class SecondBound:
    """Satisfies `BoundRenderer`."""

    stop_token_ids: frozenset[int] = frozenset()
    end: int = -1
    """The one that its template writes."""

    def __init__(self, tokenizer: Any) -> None:  # Any: as above
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self.controls = {number: str(one) for number, one in added if one.special or "|" in str(one)[1:]}
        self.letters = {chr(_STANDS_FOR + place): word for place, word in enumerate(self.controls.values())}

    def end_of_answers(self) -> int:
        """Return the token that stands behind an answer."""
        asked = self.text([_QUESTION], (), ask=True)
        told = self.text([_QUESTION, {"role": "assistant", "content": "word"}], (), ask=False)
        behind = self.ids(told.removeprefix(asked).removeprefix("word"))
        if not told.startswith(f"{asked}word") or not behind or behind[0] not in self.controls:
            raise DatasetError(
                "the chat template does not end an answer with a token of its own",
                why=f"of the question {asked!r} and the answer 'word' it makes {told!r}",
            )
        return behind[0]

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), ask: bool = True) -> list[int]:
        """Return the tokens of the template's text."""
        return self.ids(self.text(messages, tools, ask=ask))

    def bridge(
        self,
        history: Sequence[Message],
        output_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        keep_thoughts: bool = False,
    ) -> list[int] | None:
        """Return the rest of the whole conversation behind the answer, if it begins as it did."""
        if any(message.get("role") == "assistant" for message in messages):
            raise DatasetError("an answer stands behind an answer", why="answers come from the engine")
        closed = bool(output_ids) and output_ids[-1] in self.stop_token_ids
        if closed and output_ids[-1] != self.end:
            return None
        end = self.decoded([self.end])
        answer = self.parse(output_ids, tools=tools).message
        asked = self.text(history, tools, ask=True)
        told = self.text([*history, answer], tools, ask=False)
        whole = self.text([*history, answer, *messages], tools, ask=True)
        said = told.removeprefix(asked).rpartition(end)[0]
        if keep_thoughts and not whole.startswith(asked + said + end):
            said = _THOUGHTS.sub("", said)
        if not told.startswith(asked) or not whole.startswith(asked + said + end):
            return None
        behind = self.ids(whole.removeprefix(asked + said))
        return behind[1:] if closed else [*self.ids(self.closing(self.decoded(output_ids))), *behind]

    def closing(self, text: str) -> str:
        """Return what closes the thoughts that a text leaves open."""
        return "\n</think>\n\n" if text.startswith("<think>") and "</think>" not in text else ""

    def parse(self, output_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> Answer:
        """Read thoughts and calls; if one call cannot be read, all of it is content."""
        ids = list(output_ids)
        text = self.decoded(ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids)
        found = _THOUGHTS.match(text)
        thoughts, rest = (found[1], text[found.end() :]) if found else ("", text)
        try:
            calls = tuple(self.call(one[1]) for one in _CALLS.finditer(rest))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Answer(content=rest, thoughts=thoughts)
        return Answer(content=_CALLS.sub("", rest) if calls else rest, thoughts=thoughts, calls=calls)

    def call(self, text: str) -> ToolCall:
        """Return one call."""
        told = json.loads(text)
        if not isinstance(told["name"], str) or not isinstance(told["arguments"], dict):
            raise TypeError("no call")
        return ToolCall(name=told["name"], arguments=json.dumps(told["arguments"], ensure_ascii=False))

    def text(self, messages: Sequence[Message], tools: Sequence[Tool], *, ask: bool) -> str:
        """Return the template's text."""
        given = [self.veiled(self.checked(message)) for message in messages]
        tools = self.veiled(tools)
        more = {"tools": list(tools)} if tools else {}
        with refusing():
            told = str(self.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=ask, **more))
        return self.whole(told, given, tools)

    def whole(self, text: str, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return a conversation's text if it has all that was said, thoughts apart."""
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        names = [f'"{one["function"]["name"]}"' for one in (*tools, *calls)]
        said = [str(message["content"]).strip() for message in messages]
        lost = [name for name in names if text.count(name) < names.count(name)]
        lost += [one for one in said if one not in text]
        if lost:
            raise DatasetError(f"the template has no place for {lost[0][:40]}", why="it is not in what it writes")
        return text

    def checked(self, message: Message) -> Mapping[str, Any]:
        """Return a message as templates take it, arguments of calls as objects. Any: JSON."""
        content = message.get("content") or ""
        if isinstance(content, list) and all(part.get("type") == "text" for part in content):
            content = "".join(part["text"] for part in content)
        if message.get("role") not in _ROLES or not isinstance(content, str):
            raise DatasetError("a message has no place in a conversation", why=f"it is {str(dict(message))[:100]}")
        calls = []
        for call in message.get("tool_calls") or ():
            function = dict(call["function"])
            if isinstance(function["arguments"], str):
                with refusing():
                    function["arguments"] = dict(json.loads(function["arguments"]).items())
            calls.append({"type": "function", "function": function})
        return {**message, "content": content, **({"tool_calls": calls} if calls else {})}

    def veiled(self, said: Any) -> Any:  # Any: JSON
        """Return it with a letter in place of each text that would become a control token."""
        if isinstance(said, str):
            if set(said) & set(self.letters):
                raise DatasetError(
                    "a message has a letter that stands for a control token", why=f"it is {said[:100]!r}"
                )
            for letter, word in self.letters.items():
                said = said.replace(word, letter)
        elif isinstance(said, Mapping):
            return {self.veiled(key): self.veiled(value) for key, value in said.items()}
        elif isinstance(said, Sequence):
            return [self.veiled(one) for one in said]
        return said

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, ordinary ones where a letter stands for a control token."""
        ids: list[int] = []
        for piece in re.split(f"([{''.join(self.letters)}])", text):
            word = self.letters.get(piece, "")
            for part in (word[:1], word[1:]) if word else (piece,):
                ids += self.tokenizer.encode(part, add_special_tokens=False)
        return ids

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, whole."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


SecondRenderer.bound = SecondBound


@contextmanager
def refusing() -> Iterator[None]:
    """Make whatever templates and JSON raise into a refusal."""
    try:
        yield
    except Exception as error:
        raise DatasetError("the template has no place for this", why=f"{type(error).__name__}: {error}") from error
