"""Renderers that take a text for more than a text: control tokens that somebody spells, marks that an answer speaks of.

Knows: one defect each, in what the second renderer makes of texts.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from areal_agentic.renderer import Answer
from areal_conformance.probes.tokenizers import END, UNFLAGGED
from areal_core.contract.optional import ToolCall
from areal_proof.mutants.rows import Original, after, breaking, put, row, within
from areal_proof.second.renderer import SecondBound, SecondRenderer

breaks = breaking("renderer/second", SecondRenderer, part=("bound", SecondBound))
breaks_bind = breaking("renderer/second", SecondRenderer)
_NO_LETTERS = {chr(0x10FFFD): "no control token"}


def _as_is(key: str, result: Any, said: Any) -> Any:  # Any: JSON
    return {**result, key: said[key]} if isinstance(said, Mapping) and key in said else result


def _first_alone(self: SecondBound, text: str) -> str:
    place = next((at + 1 for at, one in enumerate(text) if one in self.letters), len(text))
    return text[:place] + "".join(self.letters.get(one, one) for one in text[place:])


CONTROL_ROWS = breaks.rows(
    row("QuestionsForgeTurns", "Encodes a question as it stands.", "renderer.render.control",
        veiled=lambda original, said: said if isinstance(said, Mapping) and said.get("role") == "user" else original()),
    row("UnflaggedForgeTurns", "Spells the special ones of control tokens in ordinary ones, and no others.",
        "renderer.render.control",
        veiled=within(lambda self: put(self, letters={one: word for one, word in self.letters.items()
            if word != UNFLAGGED}))),
    row("ThoughtsForgeTurns", "Encodes thoughts as they stand.", "renderer.render.control_places",
        veiled=after(lambda result, said: _as_is("reasoning_content", result, said))),
    row("ToolsForgeTurns", "Encodes what describes a tool as it stands.", "renderer.render.control_places",
        veiled=after(lambda result, said: _as_is("description", result, said))),
    row("ArgumentsForgeTurns", "Encodes arguments of calls as they stand.", "renderer.render.control_places",
        veiled=after(lambda result, said: _as_is("arguments", result, said))),
    row("OnceIsEnough", "Spells the first of several control tokens in ordinary ones.",
        "renderer.render.control_places",
        ids=lambda original, self, text: original(_first_alone(self, text))),
    row("WhatFollowsForgesTurns", "Spells control tokens in ordinary ones where all is written anew, and in no bridge.",
        "renderer.bridge.control",
        bridge=within(lambda self: put(self, letters=_NO_LETTERS))),
    row("ReadsTrimmed", "Trims what an answer says when it is read.", "renderer.parse.edges",
        parse=after(lambda result: attrs.evolve(result, content=result.content.strip()))),
    row("SpelledEndsEnd", "Ends an answer where its text spells the end token.", "renderer.parse.control",
        parse=after(lambda result: attrs.evolve(result, content=result.content.partition(END)[0]))),
)  # fmt: skip


@breaks("parse", "renderer.parse.marks")
def ThoughtsEndLast(original: Original, self: SecondBound, output_ids: Any) -> Any:
    """Takes all before the last mark that closes thoughts for thoughts, where the content speaks of it."""
    made = original()
    more, mark, content = made.content.rpartition("</think>")
    return attrs.evolve(made, thoughts=made.thoughts + more, content=content) if mark and made.thoughts else made


@breaks("parse", "renderer.parse.marks")
def MarksAreTakenOut(original: Original) -> Any:
    """Takes the marks of calls out of a content that speaks of them."""
    made = original()
    return attrs.evolve(made, content=re.sub("</?tool_call>", "", made.content))


@breaks("parse", "renderer.parse.cut")
def OpenThoughtsAreContent(original: Original, self: SecondBound, output_ids: Any) -> Any:
    """Takes thoughts that were cut for what the answer says."""
    made = original()
    is_open = made.thoughts and "</think>" not in self.decoded(output_ids)
    return attrs.evolve(made, thoughts="", content=made.thoughts) if is_open else made


@breaks("call", "renderer.parse.spellings")
def CallsOfOneOrder(original: Original, text: str) -> Any:
    """Reads no arguments where they stand before the name."""
    made = original()
    return made if text.lstrip("{ \n").startswith('"name"') else attrs.evolve(made, arguments="{}")


@breaks("call", "renderer.parse.spellings")
def OtherKeysAreNone(original: Original, text: str) -> Any:
    """Reads a call whose arguments stand under another name as one without any."""
    told = json.loads(text)
    if isinstance(told, dict) and isinstance(told.get("name"), str) and "arguments" not in told:
        return ToolCall(name=told["name"], arguments="{}")
    return original()


@breaks("call", "renderer.parse.calls")
def TextsAreRead(original: Original) -> Any:
    """Reads arguments that are texts as the JSON that they spell."""
    made = original()
    arguments = {key: _read(value) for key, value in json.loads(made.arguments).items()}
    return attrs.evolve(made, arguments=json.dumps(arguments))


@breaks("call", "renderer.parse.calls")
def NamesAreWords(original: Original) -> Any:
    """Reads the name of a tool up to the first dash or dot."""
    made = original()
    return attrs.evolve(made, name=re.split("[-.]", made.name)[0])


@breaks("parse", "renderer.parse.content")
def NamedIsCalled(original: Original, tools: Any) -> Any:
    """Takes a content that is JSON with a name for a call, where tools are offered."""
    made = original()
    told = _read(made.content) if tools else None
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return made
    return Answer(content="", thoughts=made.thoughts, calls=[ToolCall(name=told["name"], arguments="{}")])


def _read(text: Any) -> Any:  # Any: JSON
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text


BRIDGE_ROWS = breaks.rows(
    row("LineBreakIsTheEnd", "Takes an answer that was cut at what stands behind an end for one that was ended.",
        "renderer.bridge.closes",
        bridge=lambda original, self, history, output_ids, messages, tools, keep_thoughts: original(history,
            [*output_ids[:-1], self.end] if output_ids and self.decoded(output_ids[-1:]) == "\n" else output_ids,
            messages, tools=tools, keep_thoughts=keep_thoughts)),
    row("AnyEndWillDo", "Goes on behind a stop token that the template does not write there, where thoughts are kept.",
        "renderer.bridge.ends",
        bridge=lambda original, self, history, output_ids, messages, tools, keep_thoughts: original(history,
            [*output_ids[:-1], self.end] if keep_thoughts and output_ids and output_ids[-1] in self.stop_token_ids
            else output_ids, messages, tools=tools, keep_thoughts=keep_thoughts)),
    row("LaterSystemsForgotten", "Leaves out what the system says behind an answer.", "renderer.bridge.follows",
        bridge=lambda original, history, output_ids, messages, tools, keep_thoughts: original(history, output_ids,
            [one for one in messages if one.get("role") != "system"], tools=tools, keep_thoughts=keep_thoughts)),
)  # fmt: skip

SAID_ROWS = breaks.rows(
    row("PartsAreLines", "Writes each part of a content on a line of its own.", "renderer.render.contents",
        checked=lambda original, message: original({**message, "content": "\n".join(part.get("text", "")
            for part in message["content"])}) if isinstance(message.get("content"), list) else original()),
    row("NothingIsNone", "Writes a content that is nothing as the word for it.", "renderer.render.contents",
        checked=lambda original, message: original({**message, "content": str(message.get("content"))
            if message.get("content") is None else message["content"]})),
    row("PartsAsTheyStand", "Writes parts of a content as their JSON.", "renderer.render.contents",
        checked=lambda original, message: original({**message, "content": json.dumps(message["content"])}
            if isinstance(message.get("content"), list) else message)),
    row("BrokenArgumentsLeftOut", "Writes arguments that are no JSON object as none.", "renderer.render.arguments",
        checked=lambda original, message: original(_with_objects(message))),
)  # fmt: skip


def _with_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    calls = []
    for call in message.get("tool_calls") or ():
        try:
            dict(json.loads(call["function"]["arguments"]).items())
            calls.append(call)
        except (ValueError, AttributeError, RecursionError):
            calls.append({**call, "function": {**call["function"], "arguments": {}}})
        except TypeError:  # objects
            calls.append(call)
    return {**message, "tool_calls": calls} if calls else message


@breaks_bind("bind", "renderer.bind.alike")
def OneForAllOfASize(self: SecondRenderer, original: Original, tokenizer: Any) -> Any:
    """Gives what it bound first to every tokenizer of that class and size."""
    kept = self.__dict__.setdefault("kept", {})
    return kept.setdefault((type(tokenizer), len(tokenizer)), original())
