"""Calls of tools and thoughts: told as the API has them, kept as the engine's tokens, whatever the agent makes of them.

Knows: answers that call, agents that write calls in JSON of their own, thoughts that a template leaves out.
Does not know: which renderer reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from areal_conformance.benches.endpoint import EndpointBench, answer, answered, grown, said, text_of, trained
from areal_conformance.benches.endpoint_forms import CHAT, DIALOGUES, MESSAGES, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import expect
from areal_conformance.probes.tokenizers import tiny_tokenizer
from areal_core.contract.errors import CapabilityError, NoReplica
from areal_core.contract.optional import ToolCall, ToolParse

_TOKENS = "endpoint#tokens"
_CALL = '<tool_call>\n{"name": "add", "arguments": {"b": "ab", "a": 1}}\n</tool_call>'
_THOUGHTS = ("abba", "er", "ab ab")
_WORD = f"er{' ' * 150}ab"
"""An argument with more white space in one place than a piece of a stream is long."""
_OTHER = f'<tool_call>\n{{"name": "look", "arguments": {{"word": "{_WORD}"}}}}\n</tool_call>'


def _tool(form: Form, name: str, purpose: str = "", more: Json | None = None, **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, **(more or {})}
    return form.tool({"name": name, "description": purpose or f"To {name}.", "parameters": parameters})


@family("endpoint.tokens.tools.{form}", DIALOGUES, level=Level.SINGLE, law=1, spec=_TOKENS)
async def tools(bench: EndpointBench, form: Form) -> None:
    """Calls by {form}, streamed or not, are told as its API has them; behind what tools answer exact tokens go on."""
    both = f"{_CALL}\n{_OTHER}"
    texts = (f"abba\n{_CALL}", _CALL, both, both)
    script = [*(answer(number, text=text) for number, text in enumerate(texts, start=1)), answer(5)]
    one, other = ("add", {"b": "ab", "a": 1}), ("look", {"word": _WORD})
    due = [[one], [one], [one, other], [one, other]]
    async with bench.opened(form, script=lambda turn: script[turn]) as opened:
        agent, offered = opened.agent, [_tool(form, "add"), _tool(form, "look")]
        agent.history.append(form.asked("what is it?"))
        for number in range(4):
            told = answered(form, await agent.ask(tools=offered, stream=number % 2 == 1), f"a call by {form.name}")
            seen = [(name, arguments) for _, name, arguments in form.calls(told)]
            expect(seen == due[number], f"the policy called {due[number]}, the agent is told {seen}")
            ids = [call for call, _, _ in form.calls(told)]
            expect(all(ids) and len(set(ids)) == len(ids), f"calls of one answer have the ids {ids}")
            reason = form.reason(told)
            expect(reason == form.reasons["calls"], f"an answer that calls is told to have ended with {reason!r}")
            agent.history += form.echo(told) if number == 0 else _respelled(form.echo(told))
            agent.history += [form.result(call, f"{number} ab") for call in ids]
        said(form, await agent.ask(tools=offered), "an answer behind calls")
        first = text_of(opened.session.asked[0].input_ids)
        expect('"add"' in first, f"the tool is not in what the policy was asked: {first!r}")
        grown(opened)
        expect(len(trained(opened)) == 1, "one conversation with calls became several trajectories")


def _respelled(value: Any) -> Any:
    """Return JSON in another order, and arguments that are a text as another text of the same value. Any: JSON."""
    if isinstance(value, list):
        return [_respelled(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: json.dumps(json.loads(one), sort_keys=True, indent=1) if key == "arguments" else _respelled(one)
        for key, one in reversed(value.items())
    }


def _words(value: Any) -> Iterator[str]:
    """Yield the keys and texts of JSON. Any: JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _words(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _words(one)


_SCHEMAS: tuple[Json, ...] = (
    {"$defs": {"opal": {"type": "object", "properties": {"amber": {"enum": ["slate", "umber"]}}}}},
    {"$defs": {"opal": {"anyOf": [{"type": "array", "items": {"const": "topaz"}}]}}},
    {"$defs": {"opal": {}}, "patternProperties": {"zeta": {"title": "garnet"}}},
    {"$defs": {"opal": {}}, "description": "beryl"},
)
"""What pydantic and MCP servers write beside the properties of a tool."""


@check("endpoint.tokens.offered", level=Level.SINGLE, law=1, spec=_TOKENS)
async def offered(bench: EndpointBench) -> None:
    """A conversation that goes on with other tools is rendered anew with those, and begins a trajectory.

    Other ones are also those of the same names that say something else of themselves, wherever in their schema.
    """
    offers = [
        _tool(CHAT, "add", "orbit"),
        _tool(CHAT, "quartz", "orbit"),
        _tool(CHAT, "quartz", "lumen"),
        _tool(CHAT, "quartz", "lumen", zeta={"type": "integer"}),
        _tool(CHAT, "quartz", "lumen", zeta={"type": "string"}),
        *(_tool(CHAT, "quartz", "lumen", more, zeta={"$ref": "#/$defs/opal"}) for more in _SCHEMAS),
    ]
    told_of = [set(_words(tool)) for tool in offers]
    known = set[str]().union(*told_of) - set[str].intersection(*told_of)
    async with bench.opened() as opened:
        for number, tool in enumerate(offers, start=1):
            await opened.agent.say("ab ba?", tools=[tool])
            told = text_of(opened.session.asked[-1].input_ids)
            due, seen = known & told_of[number - 1], {word for word in known if word in told}
            expect(seen == due, f"{tool} alone is offered now, told of {sorted(due)}; asked is {told!r}")
            made = len(trained(opened))
            expect(made == number, f"a conversation with {number} offers of tools, one by one, is {made} trajectories")


@check("endpoint.tokens.results", level=Level.SINGLE, law=1, spec=_TOKENS)
async def results(bench: EndpointBench) -> None:
    """What a tool answered counts to the letter, its white space too: changed in it, a conversation begins anew."""
    texts = ("  ab\n    er", "ab\n    er", "  ab\n    er\n", "  ab\ner")
    async with bench.opened(script=lambda turn: answer(turn, text=_CALL if turn == 0 else f"abba {turn}")) as opened:
        agent, offers = opened.agent, [_tool(CHAT, "add")]
        agent.history.append(CHAT.asked("what is it?"))
        told = answered(CHAT, await agent.ask(tools=offers), "a call")
        agent.history += CHAT.echo(told)
        called, begun = CHAT.calls(told)[0][0], [*agent.history]
        agent.history.append(CHAT.result(called, texts[0]))
        await agent.say("well?", tools=offers)
        after = agent.history[len(begun) + 1 :]
        for text in texts:
            agent.history = [*begun, CHAT.result(called, text), *after]
            await agent.say("and now?", tools=offers)
            asked = text_of(opened.session.asked[-1].input_ids)
            async with bench.opened() as fresh:
                fresh.agent.history = agent.history[:-1]
                said(CHAT, await fresh.agent.ask(tools=offers), "the same history in another session")
                due = text_of(fresh.session.asked[0].input_ids)
            where = f"a tool answered {texts[0]!r}, and is said to have answered {text!r}"
            expect(asked == due, f"{where}: the policy is asked {asked!r}, of that history it is {due!r}")
        trained(opened)


@check("endpoint.errors.reading", level=Level.SINGLE, law=5, spec="endpoint#errors")
async def reading(bench: EndpointBench) -> None:
    """Calls that the engine's own parser finds are told; that it fails is the fleet's failure, that it has none is not.

    Of an answer whose calls could not be read nothing is left.
    """
    found = ToolParse(content="ab", calls=[ToolCall(name="add", arguments='{"b": "ab"}')])
    outcomes = (found, CapabilityError("this engine reads no calls"), NoReplica("every replica is out of service"))
    for outcome in outcomes:
        asked_for: list[str] = []

        def reads(text: str, made: Any = outcome, note: Callable[[str], None] = asked_for.append) -> Any:
            note(text)
            return made

        async with bench.opened(reads=reads) as opened:
            opened.agent.history.append(CHAT.asked("what is it?"))
            told = await opened.agent.ask(tools=[_tool(CHAT, "add")])
            if not asked_for:
                bench.notes.append("has no engine read calls")
                return
            failed = outcome is outcomes[-1]
            expect(
                told.status == (503 if failed else 200), f"a parser that gives {outcome!r}: {told.status} {told.reason}"
            )
            if outcome is found:
                calls = [(name, given) for _, name, given in CHAT.calls(answered(CHAT, told, "a call"))]
                expect(calls == [("add", {"b": "ab"})], f"the engine read {found.calls}, the agent is told {calls}")
        seen, kept = opened.open.failure, opened.open.num_answers
        expect((seen is not None) == failed, f"a parser that gives {outcome!r}: `failure` is {seen!r}")
        expect(kept == int(not failed), f"a parser that gives {outcome!r}: {kept} requests are said to be answered")
        if failed:
            left = opened.open.trajectories(1.0)
            expect(not left and opened.open.last is None, f"a request that was answered with 503 left {left}")
        else:
            trained(opened)


@check("endpoint.tokens.look_alikes", level=Level.SINGLE, law=1, spec=_TOKENS)
async def look_alikes(bench: EndpointBench) -> None:
    """Of answers with the same call, an agent that leaves thoughts out goes on from the one whose call it names."""
    script = [answer(1 + turn, text=f"<think>\n{word}\n</think>\n\n{_CALL}") for turn, word in enumerate(_THOUGHTS)]
    for chosen in range(len(script)):
        made = [*script, answer(len(script) + 1)]
        async with bench.opened(
            script=lambda turn, made=made: made[turn], tokenizer=tiny_tokenizer("thinking")
        ) as opened:
            agent, tools = opened.agent, [_tool(CHAT, "add")]
            agent.history.append(CHAT.asked("what is it?"))
            told = [answered(CHAT, await agent.ask(tools=tools), "an answer that calls") for _ in script]
            (message,) = CHAT.echo(told[chosen])
            agent.history.append({key: value for key, value in message.items() if key != "reasoning_content"})
            agent.history.append(CHAT.result(CHAT.calls(told[chosen])[0][0], "2 ab"))
            said(CHAT, await agent.ask(tools=tools), "an answer behind a call")
            *before, asked = opened.session.asked
            due = [*before[chosen].input_ids, *script[chosen].output_ids]
            expect(
                list(asked.input_ids[: len(due)]) == due,
                f"of {len(script)} answers with one call the agent named that of number {chosen + 1}, with the thought "
                f"{_THOUGHTS[chosen]!r}; asked is {text_of(asked.input_ids)!r}",
            )


@family("endpoint.answers.thoughts.{form}", DIALOGUES, level=Level.SINGLE, law=1, spec="endpoint#answers")
async def apart(bench: EndpointBench, form: Form) -> None:
    """Thoughts of an answer by {form}, streamed or not, are told apart; told back, they are gone on with."""
    script = [answer(turn, text=f"<think>\n{_THOUGHTS[0]} er\n</think>\n\n{_CALL}") for turn in range(1, 5)]
    async with bench.opened(form, script=lambda turn: script[turn], tokenizer=tiny_tokenizer("thinking")) as opened:
        agent, tools = opened.agent, [_tool(form, "add")]
        agent.history.append(form.asked("what is it?"))
        for number in range(3):
            asked = {**form.thinks, "tools": tools, "stream": number % 2 == 1}
            told = answered(form, await agent.ask(**asked), f"an answer with thoughts by {form.name}")
            text, thoughts = form.text(told), form.thoughts(told)
            expect(not text, f"the policy thought and called, and is told by {form.name} to have said {text!r}")
            due = f"{_THOUGHTS[0]} er"
            expect(thoughts in (due, None), f"the policy thought {due!r}, told by {form.name} is {thoughts!r}")
            agent.history += [*form.echo(told), form.result(form.calls(told)[0][0], f"{number} ab")]
        grown(opened)
        expect(len(trained(opened)) == 1, "one question with calls between thoughts became several trajectories")
        if form is MESSAGES:  # whose agents read the first block as the text
            told = answered(form, await agent.ask(tools=tools, thinking={"type": "disabled"}), "without thoughts")
            kinds = [block["type"] for block in told["content"]]
            expect("thinking" not in kinds, f"an agent that wants no thoughts is told blocks of {kinds}")


@family("endpoint.answers.halves.{form}", DIALOGUES, level=Level.SINGLE, law=1, spec="endpoint#answers")
async def halves(bench: EndpointBench, form: Form) -> None:
    """A call with half of a letter in its arguments, which is no text, is told by {form} like any other."""
    half = '<tool_call>\n{"name": "add", "arguments": {"a": "\\ud83d"}}\n</tool_call>'
    for stream in (False, True):
        async with bench.opened(form, script=lambda turn: answer(turn, text=half)) as opened:
            opened.agent.history.append(form.asked("what is it?"))
            told = answered(form, await opened.agent.ask(tools=[_tool(form, "add")], stream=stream), form.name)
            names = [name for _, name, _ in form.calls(told)]
            expect(names == ["add"], f"the policy called 'add', told by {form.name} are calls of {names}")
            trained(opened)


@check("endpoint.tokens.thoughts", level=Level.SINGLE, law=1, spec=_TOKENS)
async def thoughts(bench: EndpointBench) -> None:
    """Thoughts are no content, and left out by an agent no edit; where the template drops them a trajectory begins."""
    thinking = tiny_tokenizer("thinking")
    thought = "<think>\nabba er\n</think>\n\n"
    for keeps in (True, False):
        script = [answer(1, text=f"{thought}{_CALL}"), answer(2, text=f"{thought}stone"), answer(3)]
        async with bench.opened(script=lambda turn, made=script: made[turn], tokenizer=thinking) as opened:
            agent, tools = opened.agent, [_tool(CHAT, "add")]
            agent.history.append(CHAT.asked("what is it?"))
            for number in range(2):
                told = answered(CHAT, await agent.ask(tools=tools), "an answer with thoughts")
                text = CHAT.text(told)
                expect(text == ("", "stone")[number], f"the policy thought, and said what is told as {text!r}")
                (message,) = CHAT.echo(told)
                dropped = () if keeps else ("reasoning_content",)
                agent.history.append({key: value for key, value in message.items() if key not in dropped})
                if number == 0:
                    agent.history.append(CHAT.result(CHAT.calls(told)[0][0], "2 ab"))
            grown(opened)  # within one question thoughts stay
            expect(len(trained(opened)) == 1, "one question with a call between thoughts became several trajectories")
            await agent.say("ab ba?", tools=tools)
            told_now = text_of(opened.session.asked[2].input_ids)
            expect("abba er" not in told_now, f"the template leaves thoughts of earlier questions out: {told_now!r}")
            expect(len(trained(opened)) == 2, "a conversation whose thoughts are left out is not two trajectories")
            counted = {name: opened.open.metrics.get(f"agent/restarted{name}", 0) for name in ("", "/unbridged")}
            expect(set(counted.values()) == {1}, f"a conversation began anew for its thoughts, counted is {counted}")
