"""Where somebody's text stands in a conversation: a word in each place that a message or a tool has for one.

    for place in PLACES:
        usual, strange = (place.put(text) for text in (WORD, "<|im_end|>"))

A renderer that takes both as text writes the second as the first, but for the word.

Knows: the places, and how what was made of two texts is compared.
Does not know: how a family writes any of them, or what is strange about a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import field, frozen

from areal_agentic.renderer import Answer
from areal_conformance.benches.conversations import Json
from areal_conformance.benches.renderer import Bound, message_of
from areal_core.contract.errors import DatasetError

WORD = "lumen"
"""Stands in a place where nothing is strange."""
_ASKED = {"role": "user", "content": "stone"}


@frozen(kw_only=True)
class Put:
    """A conversation with a text in one of its places."""

    messages: tuple[Json, ...] = field(converter=tuple[Json, ...])
    tools: tuple[Json, ...] = field(default=(), converter=tuple[Json, ...])

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing in it but contents, for which every family has a place."""
        return not self.tools and all(set(one) <= {"role", "content"} for one in self.messages)

    def written(self, bound: Bound, *, ask: bool = False) -> list[int] | None:
        """Return its tokens, None where it is refused."""
        return bound.rendered(self.messages, self._offered(bound), ask=ask)

    def _offered(self, bound: Bound) -> Sequence[Json]:
        """Return its tools; none where calls have a place in the family and tools have not."""
        calls = any(message.get("tool_calls") for message in self.messages)
        return () if calls and bound.rendered(self.messages[:1], self.tools) is None else self.tools

    def output(self, bound: Bound) -> list[int] | None:
        """Return the tokens of its last message as an output, with its end; None if it does not go on from a prompt.

        Behind a prompt that opens thoughts, which are left out where the answer is written, the output closes them.
        """
        tools = self._offered(bound)
        prompt = bound.rendered(self.messages[:-1], tools)
        whole = self.written(bound)
        if prompt is None or whole is None:
            return None
        if whole[: len(prompt)] == prompt:
            return _up_to_the_end(bound, whole[len(prompt) :])
        asked = bound.rendered(self.messages[:-1], tools, ask=False)
        across = bound.decoded(whole).startswith(bound.decoded(prompt))  # a token lies across the border
        if asked is None or whole[: len(asked)] != asked or across or bound.closing is None:
            return None
        apart = (at for at, pair in enumerate(zip(prompt, whole, strict=False)) if len(set(pair)) > 1)
        same = next(apart, None)
        return None if same is None else _up_to_the_end(bound, [*bound.closing, *whole[same:]])

    def bridged(self, bound: Bound, then: Sequence[Json]) -> list[int] | None:
        """Return the bridge behind its last message as an output; None where there is none, or no place for it."""
        output, tools = self.output(bound), list(self._offered(bound))
        if output is None:
            return None
        try:
            made = bound.renderer.bridge(list(self.messages[:-1]), output, list(then), tools=tools)
        except DatasetError:
            return None
        return None if made is None else list(made)


def _up_to_the_end(bound: Bound, ids: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(ids) if token in bound.renderer.stop_token_ids]
    return ids[: ends[0] + 1] if ends else ids


def _said(role: str, content: object, **more: object) -> Json:
    return {"role": role, "content": content, **more}


def _called(
    arguments: object, *, name: str = "zeta", number: str = "call_0", content: str = "", **more: object
) -> Json:
    calls = [{"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}]
    return _said("assistant", content, tool_calls=calls, **more)


def _tool(name: str = "zeta", about: str = "To ask.", parameters: Json | None = None) -> Json:
    given = {"type": "object", "properties": parameters or {}}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": given}}


def _answered(asked: Json, content: str = "orbit", **more: object) -> Put:
    return Put(messages=[_ASKED, asked, _said("tool", content, tool_call_id="call_0", **more)], tools=[_tool()])


ANSWERS: Mapping[str, Callable[[str], Put]] = {
    "an answer": lambda text: Put(messages=[_ASKED, _said("assistant", text)]),
    "an answer behind thoughts": lambda text: Put(
        messages=[_ASKED, _said("assistant", text, reasoning_content="orbit")]
    ),
    "thoughts": lambda text: Put(messages=[_ASKED, _said("assistant", "quartz", reasoning_content=text)]),
    "thoughts before a call": lambda text: Put(
        messages=[_ASKED, _called({"z": 1}, reasoning_content=text)], tools=[_tool()]
    ),
    "an answer beside a call": lambda text: Put(messages=[_ASKED, _called({"z": 1}, content=text)], tools=[_tool()]),
    "an argument": lambda text: Put(messages=[_ASKED, _called({"a": text})], tools=[_tool()]),
    "an argument behind thoughts": lambda text: Put(
        messages=[_ASKED, _called({"a": text}, reasoning_content="orbit")], tools=[_tool()]
    ),
    "an argument among others": lambda text: Put(
        messages=[_ASKED, _called({"z": [1, {"deep": text}], "a": "quartz"})], tools=[_tool()]
    ),
    "arguments as JSON text": lambda text: Put(
        messages=[_ASKED, _called(json.dumps({"a": text}, ensure_ascii=False))], tools=[_tool()]
    ),
}
"""Places of an answer, whose message is the last: what it is called -> a conversation with a text there."""

NAMES: Mapping[str, Callable[[str], Put]] = {
    "the name of an argument": lambda text: _answered(_called({text: "quartz"})),
    "the name of a called tool": lambda text: _answered(_called({"z": 1}, name=text)),
    "the id of a call": lambda text: _answered(_called({"z": 1}, number=text)),
    "the name of who answers": lambda text: _answered(_called({"z": 1}), name=text),
    "the name of a tool": lambda text: Put(messages=[_ASKED], tools=[_tool(name=text)]),
    "the name of a parameter": lambda text: Put(
        messages=[_ASKED], tools=[_tool(parameters={text: {"type": "string"}})]
    ),
}

PLACES: Mapping[str, Callable[[str], Put]] = {
    "a question": lambda text: Put(messages=[_said("user", text)]),
    "a system message": lambda text: Put(messages=[_said("system", text), _ASKED]),
    "a system message beside tools": lambda text: Put(messages=[_said("system", text), _ASKED], tools=[_tool()]),
    "a later system message": lambda text: Put(
        messages=[_ASKED, _said("assistant", "ab"), _said("system", text), _ASKED]
    ),
    "an earlier answer": lambda text: Put(messages=[_ASKED, _said("assistant", text), _ASKED]),
    "a part of a question": lambda text: Put(messages=[_said("user", [{"type": "text", "text": text}])]),
    "what a tool answers": lambda text: _answered(_called({"z": 1}), content=text),
    "the description of a tool": lambda text: Put(messages=[_ASKED], tools=[_tool(about=text)]),
    "the description of a parameter": lambda text: Put(
        messages=[_ASKED], tools=[_tool(parameters={"z": {"type": "string", "description": text, "enum": ["a", text]}})]
    ),
    **NAMES,
    **ANSWERS,
}
"""All places, likewise."""

FOLLOWING: Mapping[str, Callable[[str], list[Json]]] = {
    "a question": lambda text: [_said("user", text)],
    "a system message": lambda text: [_said("system", text), _said("user", "ab")],
    "what a tool answers": lambda text: [_said("tool", text, tool_call_id="call_0")],
}
"""Places of what follows an answer: likewise, the messages alone."""


def reads_as(written: str, usual: str, text: str) -> bool:
    """Tell whether what was written is the usual with a text in place of `WORD`, spelled as JSON may where that is."""
    return any(written == usual.replace(WORD, each) for each in _spelled(text)) or _reads_as_json(written, usual, text)


def _spelled(text: str) -> Iterator[str]:
    """Yield a text as it stands, and within a text of JSON, and within JSON that is itself a text of JSON."""
    yield text
    for plain in (True, False):
        once = json.dumps(text, ensure_ascii=plain)[1:-1]
        yield from (once, json.dumps(once, ensure_ascii=plain)[1:-1])


def _reads_as_json(written: str, usual: str, text: str) -> bool:
    """Tell the same where a text of JSON is the word alone, in any spelling of JSON."""
    begin, *rest = usual.split(f'"{WORD}"')
    place = len(begin.replace(WORD, text))
    if written[:place] != begin.replace(WORD, text):
        return False
    for piece in rest:
        try:
            seen, place = json.JSONDecoder().raw_decode(written, place)
        except ValueError:
            return False
        due = piece.replace(WORD, text)
        if seen != text or not written.startswith(due, place):
            return False
        place += len(due)
    return place == len(written)


def told(answer: Answer) -> str:
    """Return what an answer says as one text, in which a word can be replaced by another."""
    return json.dumps(message_of(answer), ensure_ascii=False)
