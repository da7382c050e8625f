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

from areal_conformance.probes.tokenizers import END
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


BRIDGE_ROWS = breaks.rows(
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
