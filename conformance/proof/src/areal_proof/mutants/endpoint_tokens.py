"""Broken endpoints: tokens, masks and versions that are not the engine's, turns lost, trained twice or crossed.

Knows: how the second endpoint's sessions are bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract.data import StopReason
from areal_core.contract.inference import SamplingParams, VersionSpan
from areal_proof.mutants.rows import Original, after, breaking, given, gives, put, row, within
from areal_proof.second.endpoint import SecondEndpoint
from areal_proof.second.endpoint_bodies import Refused
from areal_proof.second.endpoint_session import SecondOpen, told

breaks = breaking("endpoint/second", SecondEndpoint, part=("opens", SecondOpen))
_FORMS = ("chat", "completions", "messages", "responses")
_DIALOGUES = ("chat", "messages", "responses")
_THOUGHTS = tuple(f"endpoint.answers.thoughts.{form}" for form in _DIALOGUES)
_HALVES = tuple(f"endpoint.answers.halves.{form}" for form in _DIALOGUES)


def _name(tool: Mapping[str, Any]) -> str:  # Any: JSON
    return str(tool.get("function", tool).get("name"))


def _plain(tool: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    function = tool["function"]
    said = {name: one for name, one in function["parameters"].items() if name in ("type", "properties", "required")}
    return {**tool, "function": {**function, "parameters": said}}


def _encoded_anew(self: SecondOpen, ids: Any) -> tuple[int, ...]:
    text = self.session.tokenizer.decode(ids, skip_special_tokens=False)
    return tuple(self.session.tokenizer.encode(text, add_special_tokens=False))


@breaks("one", *(f"endpoint.tokens.exact.{form}" for form in _FORMS), incident="verl#6719", row="token-fidelity")
async def AnswersEncodedAnew(original: Original, self: SecondOpen) -> Any:
    """Trains on the text of an answer, encoded again."""
    made = await original()
    anew = _encoded_anew(self, made.output_ids)
    return attrs.evolve(made, output_ids=(*anew, *[0] * len(made.output_ids))[: len(made.output_ids)])


@breaks("prompt_of", "endpoint.tokens.ids", incident="rllm#272", row="token-fidelity")
def IdsEncodedAnew(original: Original, self: SecondOpen) -> Any:
    """Asks with the text of the token ids that it was given."""
    return _encoded_anew(self, original())


@breaks("prompt_of", "endpoint.tokens.every_api")
def InstructionsComeLast(original: Original, wanted: Any) -> Any:
    """Puts the instructions of a response behind what it is to answer."""
    own, said = wanted.messages[: wanted.instructions], wanted.messages[wanted.instructions :]
    return original(attrs.evolve(wanted, messages=(*said, *own)))


@breaks("went_on", "endpoint.tokens.cut")
def CutAnswerStaysOpen(original: Original, self: SecondOpen) -> Any:
    """Goes on behind an answer that was cut without closing it."""
    made = original()
    ends = [at for at, token in enumerate(made or ()) if token in self.renderer.stop_token_ids]
    last = self.answers[-1].made if self.answers else None
    if made is None or last is None or last.stop_reason is not StopReason.LENGTH:
        return made
    place = next(at for at in ends if at >= len(self.answers[-1].whole))
    return made[:place] + made[place + 1 :]


@breaks("ask", "endpoint.tokens.responses", row="token-fidelity")
async def ResponsesGrow(original: Original, self: SecondOpen, wanted: Any) -> Any:
    """Adds what goes on from a response to that response."""
    if wanted.previous in self.responses:
        said = wanted.messages[wanted.instructions :]
        made = await original()
        self.responses[wanted.previous] = (*self.responses[wanted.previous], *said)
        return made
    return await original()


@breaks("went_on", "endpoint.tokens.edited", incident="miles#353", row="token-fidelity")
def EditedIsAppended(original: Original, self: SecondOpen, wanted: Any) -> Any:
    """Takes a history for the one it knows if it has as many messages."""
    made, count = original(), len(wanted.messages)
    if made is None and self.answers and count == 3:
        newest = self.answers[-1].whole
        return (*newest, *self.session.tokenizer.encode(wanted.messages[-1]["content"], add_special_tokens=False))
    return made


@breaks("lines", "endpoint.masks.branches")
def TrainedInEveryBranch(self: SecondOpen) -> Any:
    """Trains on an answer in every trajectory that goes on from it."""
    made = []
    for one in self.answers:
        if any(self.before(other) is one for other in self.answers):
            continue
        line, before = [one], self.before(one)
        while before is not None:
            line, before = [before, *line], self.before(before)
        made.append(line)
    return made


@breaks("lines", "endpoint.masks.branches")
def StaysWithTheOldestBranch(self: SecondOpen) -> Any:
    """Keeps an answer in the trajectory of who went on from it first."""
    taken: list[Any] = []
    made = []
    for one in self.answers:
        line = []
        here: Any = one
        while here is not None and here not in taken:
            taken.append(here)
            line.append(here)
            here = next((other for other in self.answers if self.before(other) is here), None)
        made += [line] if line else []
    return made


@breaks("keep", "endpoint.masks.choices")
def GoesOnFromTheFirst(original: Original, self: SecondOpen, wanted: Any, prompt: Any, made: Any) -> Any:
    """Goes on from the first of several answers, whichever the agent chose."""
    said = original()
    for one in said:
        self.known[told((*wanted.messages, one.answer.message), wanted.tools)] = (
            prompt, made[0].output_ids, wanted.messages,
        )  # fmt: skip
    return said


@breaks("generate", "endpoint.masks.alike", row="token-fidelity")
async def SameTimeSameAnswer(original: Original, self: SecondOpen, prompt: Any) -> Any:
    """Answers requests that are alike and come at the same time with one answer."""
    waiting = self.restarts.__dict__.setdefault("waiting", {})
    if prompt not in waiting:
        waiting[prompt] = asyncio.ensure_future(original())
        waiting[prompt].add_done_callback(lambda _done: waiting.pop(prompt))
    return await asyncio.shield(waiting[prompt])


@breaks("generate", "endpoint.masks.alike", row="token-fidelity")
async def AnsweredFromMemory(original: Original, self: SecondOpen, prompt: Any) -> Any:
    """Answers a request that was answered before as it was answered then."""
    known = self.restarts.__dict__.setdefault("known", {})
    if prompt not in known:
        known[prompt] = await original()
    return known[prompt]


@breaks("keep", "endpoint.masks.choices", row="logprob-gap")
def LogprobsOfTheFirst(original: Original, wanted: Any, prompt: Any, made: Any) -> Any:
    """Keeps the log-probs of the first of several answers for all of them."""
    first = made[0].logprobs

    def of_the_first(one: Any) -> Any:
        count = len(one.output_ids)
        return attrs.evolve(one, logprobs=(first * count)[:count])

    return original(wanted, prompt, [of_the_first(one) for one in made])


@breaks("joined", "endpoint.masks.answers")
def PromptTokenIsTrained(original: Original, line: Any) -> Any:
    """Trains on the token before an answer too."""
    made = original()
    place = len(line[0].prompt_ids) - 1
    mask, versions = made.loss_mask.clone(), made.versions.clone()
    mask[place], versions[place] = True, versions[place + 1]
    return attrs.evolve(made, loss_mask=mask, versions=versions)


@breaks("joined", "endpoint.masks.answers")
def LastTokenUntrained(original: Original) -> Any:
    """Leaves the last token of a trajectory off the mask."""
    made = original()
    mask, versions, logprobs = made.loss_mask.clone(), made.versions.clone(), made.logprobs.clone()
    mask[-1], versions[-1], logprobs[-1] = False, -1, 0.0
    return attrs.evolve(made, loss_mask=mask, versions=versions, logprobs=logprobs)


@breaks("keep", "endpoint.tokens.conversations")
def StreamsAreLost(original: Original, self: SecondOpen, wanted: Any) -> Any:
    """Keeps no answer that was streamed."""
    said = original()
    if wanted.stream:
        del self.answers[-len(said) :]
    return said


@breaks("one", "endpoint.sessions.apart", row="tenants")
async def OneAnswerForAPrompt(original: Original, self: SecondOpen, prompt: Any) -> Any:
    """Answers a prompt as it answered it in another session."""
    cached = type(self).__dict__.get("cached")
    if cached is None:
        cached = {}
        type(self).cached = cached  # type: ignore[attr-defined]  # the mutant's own class
    made = await original()
    return cached.setdefault(prompt, made)


@breaks("keep", "endpoint.sessions.apart", "endpoint.sessions.told", row="tenants")
def SessionsShareAnswers(original: Original, self: SecondOpen) -> Any:
    """Keeps the answers of all sessions in one list."""
    shared = type(self).__dict__.get("shared")
    if shared is None:
        shared = []
        type(self).shared = shared  # type: ignore[attr-defined]  # the mutant's own class
    self.answers = shared
    return original()


@breaks("read", *(f"endpoint.answers.empty.{form}" for form in _DIALOGUES), row="failed-is-typed")
def NothingSaidIsNoAnswer(original: Original) -> Any:
    """Refuses a request whose answer ended before it said anything."""
    said = original()
    if not said.calls and not said.answer.content:
        raise Refused("the policy said nothing")
    return said


class _KeepsThoughts:
    """A renderer whose bridges keep thoughts. Any: as the renderer's own."""

    def __init__(self, renderer: Any) -> None:
        self.renderer = renderer

    def bridge(self, history: Any, output_ids: Any, messages: Any, *, tools: Any) -> Any:
        return self.renderer.bridge(history, output_ids, messages, tools=tools, keep_thoughts=True)


ROWS = breaks.rows(
    row("ConversationsRenderedAnew", "Renders every conversation anew.",
        *(f"endpoint.tokens.turns.{form}" for form in _DIALOGUES), incident="verl#6719", row="token-fidelity",
        went_on=lambda: None),
    row("TurnLost", "Loses the first of several trajectories.", "endpoint.tokens.conversations",
        lines=after(lambda result: result[1:] if len(result) > 1 else result)),
    row("ToolsAreNoDifference", "Goes on with whatever tools are offered now.", "endpoint.tokens.offered",
        known_as=lambda original, messages: original(messages, ())),
    row("ToolsKnownByName", "Goes on with tools of the same names, whatever they are.", "endpoint.tokens.offered",
        known_as=lambda original, messages, tools: original(messages, [_name(tool) for tool in tools])),
    row("ToolsByTheirProperties", "Tells the policy of a tool's properties, and of nothing else in its schema.",
        "endpoint.tokens.offered",
        prompt_of=lambda original, wanted: original(attrs.evolve(wanted, tools=tuple(map(_plain, wanted.tools))))),
    row("NewestOfLookAlikes", "Goes on from the newest of the answers that make the same call, whichever is named.",
        "endpoint.tokens.look_alikes", named=lambda key: key),
    row("CallsComparedAsText", "Takes calls in other spacing or order for others.",
        *(f"endpoint.tokens.tools.{form}" for form in ("chat", "responses")), incident="verl#6719",
        known_as=lambda original, messages, tools: json.dumps([original(), [one.get("tool_calls") for one in messages
            if one["role"] == "assistant"]])),
    row("SpacesAreEdits", "Takes white space around an answer for an edit.", "endpoint.tokens.spaced",
        known_as=lambda original, messages: json.dumps([original(), [one["content"] for one in messages]])),
    row("SpacesOfToolsAreNoEdits", "Compares what tools answered without the white space around it.",
        "endpoint.tokens.results", row="token-fidelity",
        known_as=lambda original, messages, tools: original([{**one, "content": one["content"].strip()}
            if one["role"] == "tool" else one for one in messages], tools)),
    row("SpacesOfQuestionsAreNoEdits", "Compares questions without the white space around them.",
        "endpoint.tokens.edited", row="token-fidelity",
        known_as=lambda original, messages, tools: original([{**one, "content": one["content"].strip()}
            if one["role"] == "user" else one for one in messages], tools)),
    row("ThoughtsLeftOutAreEdits", "Takes thoughts that an agent leaves out for an edit.", "endpoint.tokens.thoughts",
        known_as=lambda original, messages: f"{original()}{[one.get('reasoning_content') for one in messages]}"),
    row("ThoughtsAreTold", "Tells thoughts as content.", "endpoint.tokens.thoughts",
        *_THOUGHTS,
        read=after(lambda result, self, made: attrs.evolve(result, answer=attrs.evolve(result.answer,
            content=self.session.tokenizer.decode(made.output_ids, skip_special_tokens=True).partition("<tool_call>")[0]
            if result.answer.thoughts else result.answer.content)))),
    row("ThoughtsEndEarly", "Tells thoughts without their last letter.", *_THOUGHTS,
        read=after(lambda result: attrs.evolve(result, answer=attrs.evolve(result.answer,
            thoughts=result.answer.thoughts[:-1])))),
    row("HalvesAreNoCalls", "Takes no call that has half of a letter in its arguments.", *_HALVES,
        read=after(lambda result: attrs.evolve(result, calls=tuple(one for one in result.calls
            if json.loads(one["function"]["arguments"]).get("a") != "\ud83d")))),
    row("LastOfAnswersInARow", "Asks with the last of two answers that follow each other.",
        "endpoint.tokens.answers_in_a_row", row="token-fidelity",
        prompt_of=lambda original, wanted: original(attrs.evolve(wanted, messages=tuple(one for one, after in
            zip(wanted.messages, (*wanted.messages[1:], {"role": ""}), strict=True)
            if not one["role"] == after["role"] == "assistant")))),
    row("ThoughtsAreNotAsked", "Leaves out the thoughts of a history that it does not know.",
        "endpoint.tokens.own_thoughts", row="token-fidelity",
        prompt_of=lambda original, wanted: original(attrs.evolve(wanted, messages=tuple({key: value for key, value
            in one.items() if key != "reasoning_content"} for one in wanted.messages)))),
    row("ThoughtsStayUnasked", "Goes on also where the template leaves thoughts out now.", "endpoint.tokens.thoughts",
        row="token-fidelity",
        went_on=within(lambda self: put(self, renderer=_KeepsThoughts(self.renderer)))),
    row("ColumnsLost", "Drops the columns that came with tokens.", "endpoint.masks.columns",
        joined=gives(token_extras=lambda result: {})),
    row("AlwaysEnded", "Says of every trajectory that it came to its end.", "endpoint.masks.columns",
        joined=gives(stop_reason=StopReason.STOP)),
    row("CallsUntold", "Leaves calls in the text.",
        *(f"endpoint.tokens.tools.{form}" for form in _DIALOGUES),
        read=after(lambda result: attrs.evolve(result, calls=()))),
    row("OtherChoicesLost", "Trains on the first of several answers.", "endpoint.masks.choices",
        keep=after(lambda result, self: [self.answers.pop() for _ in result[1:]] and result)),
    row("AlwaysConcatenated", "Takes `export` and does not obey it.", "endpoint.masks.individual",
        __attrs_post_init__=after(lambda result, self: setattr(self, "export", "concatenated"))),
    row("VersionAtAdmission", "Stamps all tokens with the version that the request began with.",
        "endpoint.versions.stamped", incident="vLLM#54443", row="version-spans",
        one=gives(version_spans=lambda result: [VersionSpan(start=0, stop=len(result.output_ids),
            version=result.version_spans[0].version)] if result.output_ids else [])),
    row("VersionAtTheEnd", "Stamps all tokens with the version that the answer ended with.",
        "endpoint.versions.stamped", row="version-spans",
        one=gives(version_spans=lambda result: [VersionSpan(start=0, stop=len(result.output_ids),
            version=result.version_spans[-1].version)] if result.output_ids else [])),
    row("LogprobsOneLate", "Keeps each log-prob one token too late.", "endpoint.versions.stamped", row="logprob-gap",
        one=gives(logprobs=lambda result: (result.logprobs[-1], *result.logprobs[:-1]))),
    row("LogprobsRounded", "Tells agents rounded log-probs.", "endpoint.versions.logprobs",
        read=after(lambda result: attrs.evolve(result, generation=attrs.evolve(result.generation,
            logprobs=[round(value, 1) for value in result.generation.logprobs])))),
    row("OwnSampling", "Draws with sampling parameters of its own.", "endpoint.versions.sampling", row="logprob-gap",
        sampling=lambda original: SamplingParams(max_new_tokens=original().max_new_tokens)),
    row("LimitIsRaised", "Lets a request ask for more tokens than the run allows.", "endpoint.versions.sampling",
        sampling=lambda original, wanted: attrs.evolve(original(), max_new_tokens=wanted.limit or 1)),
    row("StopsReplaced", "Stops where an agent asks to, and no longer where the run does.",
        "endpoint.versions.sampling",
        sampling=lambda original, wanted: attrs.evolve(original(), stop=wanted.stops or original().stop)),
    row("StopsForgotten", "Does not tell the engine where an agent wants to stop.", "endpoint.versions.sampling",
        sampling=gives(stop=())),
)  # fmt: skip


VOCABULARY_ROWS = breaks.rows(
    row("InstructionsComeLater", "Puts the instructions of a response behind the conversation that it goes on from.",
        "endpoint.tokens.instructions", ask=given(instructions=0)),
    row("TrainsOn16Bits", "Keeps the ids of answers in 16 bits.", "endpoint.tokens.vocabulary",
        joined=after(lambda result: attrs.evolve(result, input_ids=result.input_ids & 0xFFFF))),
    row("AsksWith16Bits", "Keeps the ids of prompts in 16 bits.", "endpoint.tokens.vocabulary",
        prompt_of=after(lambda result: tuple(token & 0xFFFF for token in result))),
)  # fmt: skip
