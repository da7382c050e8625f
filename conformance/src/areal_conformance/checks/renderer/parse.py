"""Outputs are read as messages: calls and thoughts where there are some, everything else as it stands.

Knows: that what the template writes for a message is read as that message.
Does not know: how a family marks calls and thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from random import Random
from types import MappingProxyType, NoneType
from typing import Any

from areal_agentic.renderer import Answer
from areal_conformance.benches.conversations import Json
from areal_conformance.benches.renderer import Bound, RendererBench, message_of
from areal_conformance.benches.renderer_places import ANSWERS, WORD, Put
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect

_PARSE = "renderer#parse"
_HALVES = (
    "<tool_call>", "<tool_call>\n{\"name\": ", "<tool_call>\n{\"name\": \"add\", \"arguments\": }\n</tool_call>",
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\nstone ab\n</tool_call>",
    "</tool_call>", "<tool_call>\nnull\n</tool_call>", "<tool_call>\n[1]\n</tool_call>", "<think>", "</think>",
    "<think>\nab", "</think>\n<think>", "{\"name\": \"add\"}", "[TOOL_CALLS]", "<|python_tag|>", "<function=add>",
    "<tool_call>\n{\"name\": 3, \"arguments\": {}}\n</tool_call>", "<tool_call>\nstone ab\n</tool_call>",
    "<tool_call>\n{\"name\": \"add\", \"arguments\": \"stone ab\"}\n</tool_call>",
    f"<tool_call>\n{{\"name\": \"add\", \"arguments\": {'[' * 9000} stone ab",
    "<tool_call>stone\n<arg_key>ab</arg_key>\n</tool_call>", "{\"name\": \"stone\", \"parameters\": [\"ab\"]}",
)  # fmt: skip


def _parsed(bound: Bound, output_ids: list[int], **options: Any) -> Answer:  # Any: arguments of `parse`
    try:
        made = bound.renderer.parse(output_ids, **options)
    except Exception as error:
        told = f"{bound.kind}: parse raised {type(error).__name__}: {error}; the output is"
        raise Violation(f"{told} {bound.decoded(output_ids)!r}") from error
    expect(isinstance(made, Answer), f"{bound.kind}: parse returned a {type(made).__name__}")
    return made


def _read_back(bench: RendererBench, seed: int, **more: Any) -> None:
    for bound in bench.bounds:
        for turn in bound.turns(bench.talks(seed, 8, **more)):
            written = bound.decoded(turn.output_ids)
            due = bound.said_in(turn)
            seen = message_of(_parsed(bound, turn.output_ids, tools=turn.asked.tools))
            if due["calls"]:  # what is said beside a call some families write among the thoughts
                due, seen = _said_anywhere(due), _said_anywhere(seen)
            expect(seen == due, f"{bound.kind}: {written!r} was written for {due} and is read as {seen}")


def _said_anywhere(said: Json) -> Json:
    texts = sorted(text.strip() for text in (said["content"], said["thoughts"]) if text.strip())
    return {"texts": texts, "calls": said["calls"]}


_TOOL_OF_TEXTS: Json = {
    "type": "function",
    "function": {
        "name": "zeta",
        "description": "To ask.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
_JSON = (
    "12345",
    "-7.5",
    "true",
    "null",
    '{"a": 1}',
    "[1, 2]",
    '"ab"',
    '{"name": "quartz", "age": 3}',
    '{"name": "ab"}',
)
"""Texts that are JSON too."""
_VALUES: tuple[object, ...] = (None, True, 1.5, [], {"c": None})
_KINDS: Mapping[type, str] = MappingProxyType(
    {NoneType: "null", bool: "boolean", float: "number", list: "array", dict: "object"}
)
"""What a schema calls the kinds of these values."""
_CALLED: tuple[tuple[str, Json], ...] = (
    *(("zeta", {"a": text}) for text in _JSON),
    *(("zeta", {"b": value}) for value in _VALUES),
    *((name, {"a": "ab"}) for name in ("get-weather", "files.read", "mcp__files__read-2")),
)
"""Names and arguments of calls; `a` is a text, and nothing is said of `b`."""


def _said_with_tools(bound: Bound, answer: Json, tool: Json = _TOOL_OF_TEXTS) -> tuple[str, Json] | None:
    """Return an answer where a tool is offered as it is written, and as what it is read; None where it has no place."""
    put = Put(messages=[{"role": "user", "content": "stone"}, answer], tools=[tool])
    output = put.output(bound)
    if output is None:
        return None
    return bound.decoded(output), message_of(_parsed(bound, output, tools=put.tools))


def _told_of_b(tool: Json, value: object) -> Json:
    """Return a tool that says of `b` what kind of JSON it is."""
    function, kind = tool["function"], _KINDS[type(value)]
    parameters = function["parameters"]
    properties = {**parameters["properties"], "b": {"type": kind}}
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": properties}}}


def _written(bound: Bound, answer: Json, tool: Json) -> str | None:
    """Return an answer as it is written where a tool is offered; None where it has no place."""
    output = Put(messages=[{"role": "user", "content": "stone"}, answer], tools=[tool]).output(bound)
    return None if output is None else bound.decoded(output)


def _calling(name: str, arguments: Json) -> Json:
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@check("renderer.parse.content", level=Level.SINGLE, law=1, spec=_PARSE)
def content(bench: RendererBench) -> None:
    """An answer of text is read as that text, without the token that ends it, also where the text is JSON."""
    _read_back(bench, 21)
    for bound in bench.bounds:
        for text in _JSON:
            made = _said_with_tools(bound, {"role": "assistant", "content": text})
            if made is not None and text in made[0]:
                due = {"content": text, "thoughts": "", "calls": []}
                told = f"{bound.kind}: {made[0]!r} was written where a tool is offered, for the content {text!r}"
                expect(made[1] == due, f"{told}, and is read as {made[1]}")


@check("renderer.parse.calls", level=Level.SINGLE, law=1, spec=_PARSE)
def calls(bench: RendererBench) -> None:
    """Calls are read with their names, arguments and order, beside what was said; texts of a tool stay texts."""
    _read_back(bench, 22, tools=True)
    for bound in bench.bounds:
        for name, arguments in _CALLED:
            tool = {**_TOOL_OF_TEXTS, "function": {**_TOOL_OF_TEXTS["function"], "name": name}}
            made = _said_with_tools(bound, _calling(name, arguments), tool)
            of_b = [arguments["b"]] if "b" in arguments else []
            texts = [{"b": text} for value in of_b for text in (str(value), json.dumps(value))]
            if made and any(_written(bound, _calling(name, each), tool) == made[0] for each in texts):
                tool = _told_of_b(tool, arguments["b"])  # it is written like a text: the tool says that it is none
                made = _said_with_tools(bound, _calling(name, arguments), tool)
            if made and name in made[0]:
                due = [(name, arguments)]
                expect(made[1]["calls"] == due, f"{bound.kind}: {made[0]!r} was written for {due}, read is {made[1]}")


@check("renderer.parse.spellings", level=Level.SINGLE, law=1, spec=_PARSE)
def spellings(bench: RendererBench) -> None:
    """JSON of a call in other spacing, order, escapes or keys than the template's is that call, or is content."""
    for bound in bench.bounds:
        turns = [(one.output_ids, one.asked.tools) for one in bound.turns(bench.talks(28, 4, tools=True))]
        puts = [ANSWERS[place](WORD) for place in ("an argument", "an argument among others")]
        for output, tools in (*turns, *((put.output(bound) or [], put.tools) for put in puts)):
            due = message_of(_parsed(bound, output, tools=tools))
            for text in _respelled(bound.decoded(output[:-1])) if due["calls"] else ():
                made = _parsed(bound, [*bound.encoded(text), output[-1]], tools=tools)
                seen = message_of(made)
                kept = " ".join((made.content, made.thoughts, *(call.name + call.arguments for call in made.calls)))
                whole = all(call in seen["calls"] or _stands(call, kept) for call in due["calls"])
                expect(whole, f"{bound.kind}: {text!r}, a call of {due['calls']}, is read as {seen}")


def _stands(call: tuple[str, Json], text: str) -> bool:
    """Tell whether a call can still be found in a text."""
    name, arguments = call
    return name in text and all(f'"{key}"' in text for key in arguments)


_OTHER_KEYS = {"arguments": "parameters", "parameters": "arguments"}
"""What families call the arguments of a call."""


def _respelled(text: str) -> Iterator[str]:
    """Yield a text with the first JSON of a call in it spelled otherwise."""
    begin = text.find('{"name"')
    if begin < 0:
        return
    try:
        call, end = json.JSONDecoder().raw_decode(text, begin)
    except ValueError:  # no JSON of its own
        return
    renamed = {_OTHER_KEYS.get(key, key): value for key, value in call.items()}
    for other in (call, dict(reversed(call.items())), renamed):
        for spelled in (json.dumps(other), json.dumps(other, indent=2), json.dumps(other, separators=(",", ":"))):
            yield text[:begin] + spelled + text[end:]


@check("renderer.parse.thoughts", level=Level.SINGLE, law=1, spec=_PARSE)
def thoughts(bench: RendererBench) -> None:
    """Thoughts are read apart from the content and the calls."""
    _read_back(bench, 23, thoughts=True)
    _read_back(bench, 24, thoughts=True, tools=True)


@check("renderer.parse.anything", level=Level.SINGLE, law=5, spec=_PARSE)
def anything(bench: RendererBench) -> None:
    """Half a call, half a thought, any tokens at all: parse never raises, and loses no word."""
    draw = Random(25)
    for bound in bench.bounds:
        for half in _HALVES:
            for text in (half, f"stone {half} ab", f"{half}\n{half}"):
                made = _parsed(bound, bound.encoded(text))
                kept = " ".join((made.content, made.thoughts, *(call.name + call.arguments for call in made.calls)))
                lost = [word for word in ("stone", "ab") if word in text and word not in kept]
                expect(not lost, f"{bound.kind}: of {text!r} the words {lost} are in no part of {made}")
        for _ in range(200):
            _parsed(bound, [draw.randrange(len(bound.tokenizer)) for _ in range(draw.randint(0, 24))])


@check("renderer.stop.ends", level=Level.SINGLE, law=1, spec="renderer#stop")
def stop_ends(bench: RendererBench) -> None:
    """Answers end with a stop token, the tokenizer's own end is one, and no text of a conversation holds one."""
    for bound in [*bench.bounds, *bench.ended_otherwise()]:
        end = bound.tokenizer.eos_token_id
        told = f"{bound.kind}: the tokenizer ends texts with {end}, which ends no answer"
        expect(end is None or end in bound.renderer.stop_token_ids, told)
        stops = bound.renderer.stop_token_ids
        strange = [token for token in stops if not 0 <= token < len(bound.tokenizer)]
        expect(stops, f"{bound.kind}: no token ends an answer")
        expect(not strange, f"{bound.kind}: the stop tokens {strange} are none of the tokenizer's")
        turns = list(bound.turns(bench.talks(26)))  # each ends with one, or this raises
        if not turns:
            bench.noted(f"{bound.kind}: an answer is written otherwise than where it is asked for")
        for turn in turns:
            text = str(turn.answer["content"])
            inside = [bound.decoded([token]) for token in bound.encoded(text) if token in stops]
            expect(not inside, f"{bound.kind}: {inside} of the answer {text!r} are stop tokens")
            made = _parsed(bound, turn.output_ids)
            expect(bound.decoded(turn.output_ids[-1:]) not in made.content, f"{bound.kind}: the end token is content")
