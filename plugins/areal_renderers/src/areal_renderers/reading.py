"""What an output says: thoughts, content and calls of tools, in the ways models write them.

A text may have marks where it spells a control token; what is read keeps them. They are no part of JSON: it is decoded
without them, and what somebody escaped in it is none.

Knows: texts of answers, their end token taken off.
Does not know: tokens, templates or families.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from areal_agentic.renderer import Answer, Tool
from areal_core.contract.optional import ToolCall
from areal_renderers.ordinary import kept, plain

OPEN, CLOSE = "<think>", "</think>"


@frozen(kw_only=True)
class Reading:
    """One output: what it says, and whether there is a block of thoughts in it, maybe an empty one, maybe not closed.

    Example: Reading(answer=Answer(content="3"), block=True, closed=True)
    """

    answer: Answer
    block: bool = False
    closed: bool = True


ReadCalls = Callable[[Answer, Sequence[Tool]], Answer]
"""Takes calls out of the content of an answer."""


def think(text: str, opened: bool) -> Reading:
    """Read thoughts that stand before the content; `opened` says that the prompt opened them.

    Thoughts that were never closed are thoughts, and there is no content then: such an answer was cut.
    """
    begun = text.lstrip()
    if begun.startswith(OPEN):
        text = begun.removeprefix(OPEN)
    elif not opened:
        return Reading(answer=Answer(content=text))
    thoughts, closed, content = text.partition(CLOSE)
    answer = Answer(content=content.lstrip("\n"), thoughts=thoughts.strip("\n"))
    return Reading(answer=answer, block=True, closed=bool(closed))


def no_thoughts(text: str, opened: bool) -> Reading:
    """Read everything as content."""
    return Reading(answer=Answer(content=text))


def no_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Leave the content as it is."""
    return answer


_OPENED = re.compile(r"\n?<tool_call>\s*")
_CLOSED = re.compile(r"\s*</tool_call>")
_JSON = json.JSONDecoder()


def json_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read {"name": .., "arguments": {..}} between <tool_call> and </tool_call>, as Qwen writes them."""

    def call(text: str, place: int) -> Block | None:
        end = _end_of_json(text, place)
        closed = _CLOSED.match(text, end)
        found = _json_call(text[place:end], "arguments") if closed else None
        return (found, closed.end()) if closed and found else None

    return _blocks(answer, _OPENED, call)


def bare_json_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read {"name": .., "parameters": {..}} that is the whole content and names one of the tools, as Llama does.

    Some of its models write "arguments".
    """
    text = answer.content.strip().removeprefix("<|python_tag|>")
    call = _json_call(text, "parameters") or _json_call(text, "arguments")
    if call is None or plain(call.name) not in {tool.get("function", tool).get("name") for tool in tools}:
        return answer
    return evolve(answer, content="", calls=(call,))


_DEEPSEEK_OPENED = re.compile(r"\n?<｜tool▁call▁begin｜>")
_DEEPSEEK_CALL = re.compile(
    r"(?:function<｜tool▁sep｜>([^\n<]+)\n```json\n(.*?)\n```|([^\n<]+)<｜tool▁sep｜>(.*?))<｜tool▁call▁end｜>",
    re.DOTALL,
)
_DEEPSEEK_FRAME = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def deepseek_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read calls in tokens of their own, as DeepSeek V3 and V3.1 write them."""

    def call(text: str, place: int) -> Block | None:
        match = _DEEPSEEK_CALL.match(text, place)
        found = _call(match[1] or match[3], match[2] or match[4] or "") if match else None
        return (found, match.end()) if match and found else None

    found = _blocks(answer, _DEEPSEEK_OPENED, call)
    before, after = _DEEPSEEK_FRAME
    content = found.content.removesuffix(after).removesuffix(before)
    return evolve(found, content=content) if found.calls else found


_XML_OPENED = re.compile(r"\n?<tool_call>")
_XML_NAME = re.compile(r"([^\n<]+)\n?")
_XML_KEY = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL)
_XML_CLOSE = "</arg_value>"


def xml_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read a name, keys and values between <tool_call> and </tool_call>, as GLM 4.5 and 4.6 write them."""

    def call(text: str, place: int) -> Block | None:
        named = _XML_NAME.match(text, place)
        if named is None:
            return None
        name, place, arguments = named[1].strip(), named.end(), {}
        texts = _text_parameters(tools, plain(name))
        while key := _XML_KEY.match(text, place):
            begin = key.end()
            end = begin if plain(key[1]) in texts else _end_of_json(text, begin)
            end = end if text.startswith(_XML_CLOSE, end) else text.find(_XML_CLOSE, begin)
            if end < 0:
                return None
            argument, value = plain(key[1]), text[begin:end]
            arguments[argument] = plain(value) if argument in texts else _value(value)
            place = end + len(_XML_CLOSE)
        closed = _CLOSED.match(text, place)
        found = ToolCall(name=name, arguments=_dumped(arguments))
        return (found, closed.end()) if closed else None

    found = _blocks(answer, _XML_OPENED, call)
    return evolve(found, content=found.content.strip())


Block = tuple[ToolCall, int]
"""A call that was read, and the place behind what closes it."""


def _blocks(answer: Answer, opened: re.Pattern[str], read: Callable[[str, int], Block | None]) -> Answer:
    """Take out the calls that can be read behind what opens one; everything else is content, as it stands."""
    calls: list[ToolCall] = []
    kept: list[str] = []
    text, place = answer.content, 0
    for match in opened.finditer(text):
        block = read(text, match.end()) if match.start() >= place else None
        if block is not None:
            calls.append(block[0])
            kept.append(text[place : match.start()])
            place = block[1]
    return evolve(answer, content="".join([*kept, text[place:]]), calls=calls)


def _end_of_json(text: str, place: int) -> int:
    """Return the place behind the JSON that begins at a place; the place itself if none does."""
    try:
        return _JSON.raw_decode(text, place)[1]
    except (ValueError, RecursionError):
        return place


_BESIDE = frozenset({"name", "type", "id"})
"""Keys of a call beside its arguments, of which only the name is kept: a text with any other is no call."""


def _json_call(text: str, arguments: str) -> ToolCall | None:
    found = _loaded(text)
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return None
    if not isinstance(found.get(arguments, {}), Mapping) or not _BESIDE.union([arguments]).issuperset(found):
        return None
    # The text as it was written, where it stands last: a template that takes it as text then writes it again exactly.
    written = re.fullmatch(rf'\{{\s*"name":\s*"[^"\\]*",\s*"{arguments}":\s*(\{{.*\}})\s*\}}', text, re.DOTALL)
    if written and isinstance(_loaded(written[1]), Mapping):
        return ToolCall(name=kept(found["name"]), arguments=written[1])
    return ToolCall(name=kept(found["name"]), arguments=_dumped(found.get(arguments, {})))


def _call(name: str, arguments: str) -> ToolCall | None:
    return ToolCall(name=name.strip(), arguments=arguments) if isinstance(_loaded(arguments), Mapping) else None


def _dumped(arguments: Mapping[str, Any]) -> str:  # Any: JSON
    return kept(json.dumps(arguments, ensure_ascii=False))


def _loaded(text: str) -> Any:  # Any: JSON
    try:
        return json.loads(plain(text))
    except (ValueError, RecursionError):
        return None


def _value(text: str) -> Any:  # Any: JSON
    """Return a value that is no text as what it is, anything else as text."""
    found = _loaded(text)
    return plain(text) if found is None and text != "null" else found


def _text_parameters(tools: Iterable[Tool], name: str) -> set[str]:
    """Return the parameters of a tool that are texts."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key for key, value in properties.items() if (value or {}).get("type") == "string"}
    return set()


THOUGHTS: Mapping[str, Callable[[str, bool], Reading]] = {"none": no_thoughts, "think": think}
CALLS: Mapping[str, ReadCalls] = {
    "none": no_calls,
    "json": json_calls,
    "bare_json": bare_json_calls,
    "xml": xml_calls,
    "deepseek": deepseek_calls,
}
