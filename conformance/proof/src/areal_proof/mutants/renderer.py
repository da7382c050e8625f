"""Broken renderers: conversations that are nearly the model's, bridges that drift, outputs misread.

Knows: how the second renderer is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from areal_agentic.renderer import Answer
from areal_conformance.probes.tokenizers import CHATML, END, SYSTEM
from areal_core.contract.errors import DatasetError
from areal_proof.mutants.rows import Original, after, breaking, put, row, within
from areal_proof.second.renderer import SecondBound, SecondRenderer

breaks = breaking("renderer/second", SecondRenderer, part=("bound", SecondBound))
breaks_bind = breaking("renderer/second", SecondRenderer)


def _without(message: Mapping[str, Any], *keys: str, **more: Any) -> dict[str, Any]:  # Any: JSON
    return {**{key: value for key, value in message.items() if key not in keys}, **more}


TEXT_ROWS = breaks.rows(
    row("OneLineBreakMore", "Opens an answer with one line break too many.", "renderer.render.template",
        text=lambda original, ask: original() + ("\n" if ask else "")),
    row("EndTokenMissing", "Leaves out the token that ends an answer.", "renderer.render.template",
        text=after(lambda result: re.sub(r"(assistant\n[^<]*)<\|im_end\|>", r"\1", result))),
    row("DefaultSystemDropped", "Leaves out the system message that the template has of its own.",
        "renderer.render.template",
        text=after(lambda result: result.replace(f"<|im_start|>system\n{SYSTEM}{END}\n", ""))),
    row("ContentTrimmed", "Trims what people write.", "renderer.render.template",
        checked=after(lambda result: {**result, "content": result["content"].strip()})),
    row("ToolsSorted", "Writes tools in the order of their names.", "renderer.render.tools",
        text=lambda original, messages, tools, ask: original(messages, sorted(tools,
            key=lambda tool: tool["function"]["name"]), ask=ask)),
    row("ArgumentsAsText", "Writes arguments that came as JSON text as a text, in quotes.", "renderer.render.tools",
        checked=lambda original, message: _without(original(), **({"tool_calls": message["tool_calls"]}
            if message.get("tool_calls") else {}))),
    row("ThoughtsForgotten", "Leaves out thoughts that the template writes.", "renderer.render.thoughts",
        checked=after(lambda result: _without(result, "reasoning_content"))),
    row("ThoughtsAreContent", "Writes thoughts into the content, where the template leaves them out.",
        "renderer.render.thoughts", row="token-fidelity",
        checked=after(lambda result: _without(result, "reasoning_content", content="".join(("<think>\n",
            result["reasoning_content"], "\n</think>\n\n", result["content"]))) if result.get("reasoning_content")
            else result)),
    row("AsksAlways", "Opens an answer also where nobody asks.", "renderer.render.asks",
        text=lambda original, messages, tools: original(messages, tools, ask=True)),
    row("ControlTokensDropped", "Drops what spells a token of the family.", "renderer.render.control",
        checked=after(lambda result: {**result, "content": re.sub(r"<\|\w+\|>", "", result["content"])})),
    row("NumbersAreText", "Writes a content that is a number.", "renderer.render.refuses",
        checked=lambda original, message: original({**message, "content": str(message.get("content") or "")})),
    row("LeftOutWithoutAWord", "Writes what is left of a conversation where the template leaves a part of it out.",
        "renderer.render.nothing_lost", whole=lambda text: text),
    row("StrangersAreUsers", "Writes a role that it does not know as the user's.", "renderer.render.refuses",
        checked=lambda original, message: original({**message, "role": message.get("role") if message.get("role") in
            ("system", "assistant", "tool") else "user"})),
)  # fmt: skip


@breaks("bridge", "renderer.bridge.exact", incident="verl#6719", row="token-fidelity")
def CutAfterAsManyTokens(self: SecondBound, history: Any, output_ids: Any, messages: Any, tools: Any) -> Any:
    """Renders the conversation anew and cuts off as many tokens as there were."""
    answer = self.parse(output_ids, tools=tools).message
    whole = self.render([*history, answer, *messages], tools=tools)
    before = self.render(history, tools=tools)
    return whole[len(before) + len(output_ids) :] if whole[: len(before)] == before else None


@breaks("bridge", "renderer.bridge.law")
def EndedTwice(original: Original, self: SecondBound, output_ids: Any) -> Any:
    """Ends an answer that has ended."""
    made = original()
    ended = bool(output_ids) and output_ids[-1] in self.stop_token_ids
    return made and [*self.stop_token_ids, *made] if ended else made


@breaks("parse", "renderer.parse.anything")
def HalfACallIsAnError(original: Original, self: SecondBound, output_ids: Any) -> Any:
    """Raises where a call cannot be read."""
    for one in re.finditer(r"<tool_call>\n(.*?)\n</tool_call>", self.decoded(output_ids), re.DOTALL):
        self.call(one[1])
    return original()


@breaks("parse", "renderer.parse.anything")
def HalfACallIsLost(original: Original) -> Any:
    """Throws away a call that cannot be read, and what follows it."""
    made = original()
    return made if made.calls else attrs.evolve(made, content=made.content.partition("<tool_call>")[0])


BRIDGE_ROWS = breaks.rows(
    row("ThoughtsSlipOut", "Goes on also where the template leaves thoughts out now.", "renderer.bridge.thoughts",
        row="token-fidelity",
        bridge=lambda original, history, output_ids, messages, tools: original(history, output_ids, messages,
            tools=tools, keep_thoughts=True)),
    row("KeepsNoThoughts", "Ignores `keep_thoughts`.", "renderer.bridge.thoughts",
        bridge=lambda original, history, output_ids, messages, tools: original(history, output_ids, messages,
            tools=tools)),
    row("CutStaysOpen", "Does not close an answer that was cut.", "renderer.bridge.closes",
        bridge=after(lambda result, self: result[1:] if result and result[0] in self.stop_token_ids else result)),
    row("OneAnswerOfATool", "Goes on with the first of several messages.", "renderer.bridge.tools",
        bridge=lambda original, history, output_ids, messages, tools, keep_thoughts: original(history, output_ids,
            messages[:1], tools=tools, keep_thoughts=keep_thoughts)),
    row("OnlyItsOwnSpacing", "Goes on behind calls in its own spacing only.", "renderer.bridge.spacing",
        bridge=lambda original, self, output_ids: None if '":{' in self.decoded(output_ids) else original()),
    row("AnswersAreForged", "Takes an answer that somebody wrote.", "renderer.bridge.refuses",
        bridge=lambda original, history, output_ids, messages, tools: original(history, output_ids,
            [{**message, "role": "user"} for message in messages if message["role"] == "assistant"] or messages,
            tools=tools)),
    row("NeverGoesOn", "Begins every turn anew.", "renderer.bridge.law",
        bridge=lambda: None),
    row("OddOutputsAreNotAsked", "Does not open the answer behind an output that says nothing.",
        "renderer.bridge.never_drifts",
        bridge=after(lambda result, output_ids: result[:-1] if result and not output_ids else result)),
)  # fmt: skip

PARSE_ROWS = breaks.rows(
    row("EndIsContent", "Leaves the text of the end token in the content.", "renderer.parse.content",
        "renderer.stop.ends",
        parse=after(lambda result, output_ids, self: attrs.evolve(result, content=result.content + END)
            if output_ids and output_ids[-1] in self.stop_token_ids else result)),
    row("CallsReversed", "Reads calls in another order.", "renderer.parse.calls",
        parse=after(lambda result: attrs.evolve(result, calls=result.calls[::-1]))),
    row("CallsAreContentToo", "Leaves calls that it has read in the content.", "renderer.parse.calls",
        parse=lambda original, self, output_ids: attrs.evolve(original(), content=self.decoded(output_ids[:-1]))
            if original().calls else original()),
    row("ThoughtsUnread", "Reads thoughts as content.", "renderer.parse.thoughts",
        parse=after(lambda result: Answer(content="".join((f"<think>\n{result.thoughts}\n</think>\n\n",
            result.content)), calls=result.calls) if result.thoughts else result)),
    row("NothingEnds", "Stops at no token.", "renderer.stop.ends",
        end_of_answers=lambda: -1),
    row("LettersEnd", "Stops at a token that is a letter.", "renderer.stop.ends",
        end_of_answers=lambda self: self.ids("I")[0]),
)  # fmt: skip


@breaks("render", "renderer.pure.same")
def RemembersByLength(original: Original, self: SecondBound, messages: Any, ask: bool) -> Any:
    """Remembers conversations by how many messages they have."""
    kept = self.__dict__.setdefault("kept", {})
    return list(kept.setdefault((len(messages), ask), original()))


@breaks("render", "renderer.pure.inputs")
def GivesItsOwnList(original: Original, self: SecondBound, messages: Any, tools: Any, ask: bool) -> Any:
    """Gives the list that it keeps."""
    kept = self.__dict__.setdefault("kept", {})
    return kept.setdefault(str((messages, tools, ask)), original())


@breaks("parse", "renderer.pure.inputs")
def TakesTheEndOff(original: Original, self: SecondBound, output_ids: Any) -> Any:
    """Takes the end token off the list that it was given."""
    made = original()
    if isinstance(output_ids, list) and output_ids and output_ids[-1] in self.stop_token_ids:
        output_ids.pop()
    return made


@breaks_bind("bind", "renderer.render.template")
def BindsNothing(tokenizer: Any) -> Any:
    """Refuses every tokenizer."""
    raise DatasetError("the tokenizer is not of the family", why=f"{type(tokenizer).__name__} never is")


@breaks_bind("bind", "renderer.bind.shows")
def RefusesWithoutAWord(self: SecondRenderer, original: Original, tokenizer: Any) -> Any:
    """Says that it refuses a tokenizer, and not why."""
    try:
        return original()
    except DatasetError as error:
        raise DatasetError(error.what) from error


@breaks_bind("bind", "renderer.bind.bare")
def NoTemplateIsACrash(self: SecondRenderer, tokenizer: Any) -> Any:
    """Finds out that there is no template when it needs one."""
    bound = self.bound(tokenizer)
    bound.stop_token_ids = frozenset({tokenizer.eos_token_id})
    tokenizer.apply_chat_template([{"role": "user", "content": "q"}], tokenize=False)
    return bound


@breaks_bind("bind", "renderer.bind.apart")
def OneForAll(self: SecondRenderer, original: Original, tokenizer: Any) -> Any:
    """Keeps one tokenizer: that of the last bind."""
    made: Any = self.__dict__.setdefault("only", original())
    made.tokenizer = tokenizer
    return made


PROOF_ROWS = breaks.rows(
    row("OneFamilyUnproven", "Writes ChatML, and looks at no template.", "renderer.bind.proven",
        text=within(lambda self: put(self.tokenizer, chat_template=CHATML))),
)  # fmt: skip
