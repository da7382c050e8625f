"""Proves a renderer on the run's own tokenizer: a fixed set of conversations, each tried when it is bound.

Knows: what conversations there are, and what has to hold for each.
Does not know: how a renderer does it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve, field, frozen

from areal_agentic.renderer import Answer, Message, Tool
from areal_core.contract.errors import DatasetError
from areal_core.contract.optional import ToolCall
from areal_renderers.bound import BoundTemplate
from areal_renderers.messages import Json
from areal_renderers.reading import CLOSE, OPEN

_CALL = ToolCall(name="look_up", arguments='{"city": "K\u00f6ln", "days": 3}')
_OTHER = ToolCall(name="add", arguments='{"values": [1, 2.5], "exact": true}')
TOOLS: tuple[Tool, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": properties, "required": sorted(properties)},
        },
    }
    for name, properties in (
        ("look_up", {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer"}}),
        ("add", {"values": {"type": "array", "items": {"type": "number"}}, "exact": {"type": "boolean"}}),
    )
)
_WORD = "arealword"
_CONTENTS = ("Hello", "two\nlines", "\u4f60\u597d \U0001f642", " padded ", "1 < 2 && {x}", "")


@frozen(kw_only=True)
class Case:
    """One answer in its place: what was said before, and what follows.

    Example: Case(history=[{"role": "user", "content": "Hi"}], answer=Answer(content="Hello"), messages=[...])
    """

    history: Sequence[Message]
    answer: Answer
    messages: Sequence[Message]
    tools: Sequence[Tool] = field(default=(), converter=tuple[Tool, ...])


def cases(system: bool, tools: Sequence[Tool], num_calls: int) -> Iterator[Case]:
    """Return the fixed set, as far as a template has places."""
    again: list[Message] = [_user("And then?")]
    begun: list[Message] = [_system("Be brief."), _user("Hi")] if system else [_user("Hi")]
    for content in _CONTENTS:
        yield Case(history=[_user(content or ".")], answer=Answer(content=content or "yes"), messages=again)
        yield Case(history=begun, answer=Answer(content="Hello", thoughts="They\n\ngreet."), messages=[_user(content)])
    longer = [*begun, Answer(content="Hello").message, _user("How are you?")]
    yield Case(history=longer, answer=Answer(content="Well."), messages=again)
    yield Case(history=longer, answer=Answer(content=""), messages=again)
    if not num_calls:
        return
    for thoughts in ("", "I look it up."):
        asked = Answer(content="", thoughts=thoughts, calls=[_CALL])
        known: list[Message] = [_tool('{"rain": false}')]
        yield Case(history=begun, answer=asked, messages=known, tools=tools)
        told = [*begun, asked.message, *known]
        yield Case(history=told, answer=Answer(content="No rain.", thoughts=thoughts), messages=again, tools=tools)
        yield Case(history=told, answer=evolve(asked, calls=[_OTHER]), messages=[_tool("3.5")], tools=tools)
        if num_calls > 1:
            both = evolve(asked, calls=[_CALL, _OTHER])
            yield Case(history=begun, answer=both, messages=[*known, _tool("3.5")], tools=tools)


def prove(renderer: BoundTemplate, *, reads_thoughts: bool, reads_calls: bool) -> None:
    """Try every case, and read what the renderer claims to read.

    Raises:
        DatasetError: shows a conversation on which the renderer and the template differ.
    """
    places = renderer.template.places
    num_calls = places.num_calls if places.tool else 0
    num_read = 0
    for control in sorted(renderer.controls)[:1]:
        _check_spelled(renderer, control, TOOLS if places.tools else (), num_calls)
    for case in cases(places.system, TOOLS if places.tools else (), num_calls):
        try:
            output = _written(renderer, case)
        except DatasetError:  # the template refuses it, and so does render
            continue
        if output is None:
            continue
        thinks = any(mark in renderer.text(output) for mark in (OPEN, CLOSE))
        if (reads_thoughts or not thinks) and (reads_calls or not case.answer.calls):
            num_read += _check_parse(renderer, case, output)
        _check_bridge(renderer, case, output)
    if reads_calls and num_calls and not num_read:
        raise DatasetError(
            f"the chat template does not write calls as the renderer {renderer.name!r} reads them",
            why="it refuses every conversation with a call, or writes each answer otherwise than it asks for it",
            fix="take the renderer `template`, and name another way of calls, or none",
        )


def _check_spelled(renderer: BoundTemplate, control: str, tools: Sequence[Tool], num_calls: int) -> None:
    """Compare a conversation in which a tool and a call spell a control token with one in which they say a word."""
    told = []
    for word in (_WORD, control):
        given: tuple[object, ...] = ({"exact": word}, json.dumps({"exact": word}, ensure_ascii=False))
        described = [{**tool, "function": {**tool["function"], "description": word}} for tool in tools]
        called = [one for arguments in given for one in (_calling(arguments), _tool("3"))] if num_calls else []
        try:
            told.append(renderer.text(renderer.render([_user("Hi"), *called], tools=described)))
        except DatasetError:
            return
    usual, seen = told
    due = [usual.replace(_WORD, text) for text in (control, json.dumps(control, ensure_ascii=False)[1:-1])]
    if seen not in due:
        begin = next((at for at, pair in enumerate(zip(due[0], seen, strict=False)) if len(set(pair)) > 1), 0)
        raise DatasetError(
            f"the renderer {renderer.name!r} cannot write {control!r} as text in calls and tools",
            why=f"the chat template writes it as ...{seen[max(0, begin - 20) : begin + 40]!r}: its JSON may be ASCII",
            fix="give the tokenizer a template that writes JSON as it stands: `tojson(ensure_ascii=False)`",
        )


def _written(renderer: BoundTemplate, case: Case) -> list[int] | None:
    """Return the tokens that the template writes for the answer, with its end; None if they cannot be told apart."""
    prompt = renderer.template.text(case.history, case.tools, ask=True)
    told = renderer.template.text([*case.history, case.answer.message], case.tools, ask=False)
    if told.startswith(prompt):  # a prompt is encoded alone: a token may lie across the border where both are one text
        ids = renderer.tokens(told[len(prompt) :])
    elif renderer.opened and not case.answer.thoughts:
        asked, whole = renderer.tokens(prompt), renderer.tokens(told)
        same = next(place for place, token in enumerate(asked) if whole[place : place + 1] != [token])
        ids = [*renderer.tokens(CLOSE), *whole[same:]]
    else:
        return None
    ends = [place for place, token in enumerate(ids) if token in renderer.stop_token_ids]
    return ids[: ends[-1] + 1] if ends else ids


def _check_parse(renderer: BoundTemplate, case: Case, output: Sequence[int]) -> bool:
    """Compare what is read with what was said; tell whether there were calls in it."""
    found, said = renderer.parse(output, tools=case.tools), case.answer
    if said.thoughts not in renderer.text(output):  # the template leaves them out
        said = evolve(said, thoughts="")
    if _comparable(found) != _comparable(said):
        raise _differs(renderer, case, "an answer", str(said), str(found))
    return bool(said.calls)


def _check_bridge(renderer: BoundTemplate, case: Case, output: Sequence[int]) -> None:
    prompt = renderer.render(case.history, tools=case.tools)
    answer = renderer.parse(output, tools=case.tools).message
    told = renderer.render([*case.history, answer], tools=case.tools, ask=False)
    ended = bool(output) and output[-1] in renderer.stop_token_ids
    for said in (list(output), list(output[: len(output) - ended])):
        behind = renderer.bridge(case.history, said, case.messages, tools=case.tools)
        if behind is None or told[: len(prompt) + len(said)] != prompt + said:
            continue
        whole = renderer.render([*case.history, answer, *case.messages], tools=case.tools)
        if prompt + said + behind != whole:
            raise _differs(renderer, case, "what follows", renderer.text(whole), renderer.text(prompt + said + behind))


def _comparable(answer: Answer) -> tuple[Any, ...]:  # Any: JSON
    calls = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    return answer.content.strip(), answer.thoughts.strip(), calls


def _differs(renderer: BoundTemplate, case: Case, what: str, theirs: str, ours: str) -> DatasetError:
    conversation = json.dumps([*case.history, case.answer.message, *case.messages], ensure_ascii=False)
    return DatasetError(
        f"the renderer {renderer.name!r} does not write conversations as the model's chat template does",
        why=f"{what} in {conversation} is {theirs!r} by the template, and {ours!r} by the renderer",
        fix="take the renderer `auto`, which finds the one that holds",
    )


def _user(content: str) -> Json:
    return {"role": "user", "content": content}


def _system(content: str) -> Json:
    return {"role": "system", "content": content}


def _calling(arguments: object) -> Json:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}


def _tool(content: str) -> Json:
    return {"role": "tool", "content": content}
