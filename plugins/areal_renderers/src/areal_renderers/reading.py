"""What an output says: thoughts, content and calls of tools, in the ways models write them.

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


_JSON_BLOCK = re.compile(r"\n?<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def json_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read {"name": .., "arguments": {..}} between <tool_call> and </tool_call>, as Qwen writes them."""
    return _blocks(answer, _JSON_BLOCK, lambda match: _json_call(match[1], "arguments"))


def bare_json_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read {"name": .., "parameters": {..}} that is the whole content and names one of the tools, as Llama does."""
    text = answer.content.strip().removeprefix("<|python_tag|>")
    call = _json_call(text, "parameters") or _json_call(text, "arguments")
    if call is None or call.name not in {tool.get("function", tool).get("name") for tool in tools}:
        return answer
    return evolve(answer, content="", calls=(call,))


_DEEPSEEK_CALL = re.compile(
    r"\n?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>([^\n<]+)\n```json\n(.*?)\n```|([^\n<]+)<｜tool▁sep｜>(.*?))"
    r"<｜tool▁call▁end｜>",
    re.DOTALL,
)
_DEEPSEEK_FRAME = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def deepseek_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read calls in tokens of their own, as DeepSeek V3 and V3.1 write them."""

    def call(match: re.Match[str]) -> ToolCall | None:
        return _call(match[1] or match[3], match[2] or match[4] or "")

    found = _blocks(answer, _DEEPSEEK_CALL, call)
    before, after = _DEEPSEEK_FRAME
    content = found.content.removesuffix(after).removesuffix(before)
    return evolve(found, content=content) if found.calls else found


_XML_BLOCK = re.compile(r"\n?<tool_call>([^\n<]+)\n?(.*?)\s*</tool_call>", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def xml_calls(answer: Answer, tools: Sequence[Tool]) -> Answer:
    """Read a name, keys and values between <tool_call> and </tool_call>, as GLM 4.5 and 4.6 write them."""

    def call(match: re.Match[str]) -> ToolCall | None:
        if _XML_ARGUMENT.sub("", match[2]).strip():
            return None
        texts = _text_parameters(tools, match[1].strip())
        arguments = {key: value if key in texts else _value(value) for key, value in _XML_ARGUMENT.findall(match[2])}
        return ToolCall(name=match[1].strip(), arguments=json.dumps(arguments, ensure_ascii=False))

    found = _blocks(answer, _XML_BLOCK, call)
    return evolve(found, content=found.content.strip())


def _blocks(answer: Answer, block: re.Pattern[str], read: Callable[[re.Match[str]], ToolCall | None]) -> Answer:
    """Take out the blocks that can be read; what stands in the others is content, as it stands."""
    calls: list[ToolCall] = []
    kept: list[str] = []
    place = 0
    for match in block.finditer(answer.content):
        call = read(match)
        if call is not None:
            calls.append(call)
            kept.append(answer.content[place : match.start()])
            place = match.end()
    return evolve(answer, content="".join([*kept, answer.content[place:]]), calls=calls)


def _json_call(text: str, arguments: str) -> ToolCall | None:
    found = _loaded(text)
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        return None
    if not isinstance(found.get(arguments, {}), Mapping):
        return None
    # The text as it was written, where it stands last: a template that takes it as text then writes it again exactly.
    written = re.fullmatch(rf'\{{\s*"name":\s*"[^"\\]*",\s*"{arguments}":\s*(\{{.*\}})\s*\}}', text, re.DOTALL)
    if written and isinstance(_loaded(written[1]), Mapping):
        return ToolCall(name=found["name"], arguments=written[1])
    return ToolCall(name=found["name"], arguments=json.dumps(found.get(arguments, {}), ensure_ascii=False))


def _call(name: str, arguments: str) -> ToolCall | None:
    return ToolCall(name=name.strip(), arguments=arguments) if isinstance(_loaded(arguments), Mapping) else None


def _loaded(text: str) -> Any:  # Any: JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value(text: str) -> Any:  # Any: JSON
    """Return a value that is no text as what it is, anything else as text."""
    found = _loaded(text)
    return text if found is None and text != "null" else found


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
