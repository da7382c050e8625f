"""Calls of tools and thoughts: told as the API has them, kept as the engine's tokens, whatever the agent makes of them.

Knows: answers that call, agents that write calls in JSON of their own, thoughts that a template leaves out.
Does not know: which renderer reads and writes them.
"""

from __future__ import annotations

import json
from typing import Any

from areal_conformance.benches.endpoint import EndpointBench, answer, answered, grown, said, text_of, trained
from areal_conformance.benches.endpoint_forms import CHAT, DIALOGUES, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import expect
from areal_conformance.probes.tokenizers import tiny_tokenizer

_TOKENS = "endpoint#tokens"
_CALL = '<tool_call>\n{"name": "add", "arguments": {"b": "ab", "a": 1}}\n</tool_call>'
_THOUGHTS = ("abba", "er", "ab ab")
_OTHER = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def _tool(form: Form, name: str, purpose: str = "", **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties}
    return form.tool({"name": name, "description": purpose or f"To {name}.", "parameters": parameters})


@family("endpoint.tokens.tools.{form}", DIALOGUES, level=Level.SINGLE, law=1, spec=_TOKENS)
async def tools(bench: EndpointBench, form: Form) -> None:
    """Calls by {form}, streamed or not, are told as its API has them; behind what tools answer exact tokens go on."""
    script = [answer(1, text=f"abba\n{_CALL}"), answer(2, text=_CALL), answer(3, text=f"{_CALL}\n{_OTHER}"), answer(4)]
    due = [[("add", {"b": "ab", "a": 1})]] * 2 + [[("add", {"b": "ab", "a": 1}), ("look", {})]]
    async with bench.opened(form, script=lambda turn: script[turn]) as opened:
        agent, offered = opened.agent, [_tool(form, "add"), _tool(form, "look")]
        agent.history.append(form.asked("what is it?"))
        for number in range(3):
            told = answered(form, await agent.ask(tools=offered, stream=number == 1), f"a call by {form.name}")
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


@check("endpoint.tokens.offered", level=Level.SINGLE, law=1, spec=_TOKENS)
async def offered(bench: EndpointBench) -> None:
    """A conversation that goes on with other tools is rendered anew with those, and begins a trajectory.

    Other ones are also those of the same names that say something else of themselves.
    """
    offers = [
        _tool(CHAT, "add"),
        _tool(CHAT, "look"),
        _tool(CHAT, "look", "To er"),
        _tool(CHAT, "look", "To er", ba={}),
    ]
    offers.append(_tool(CHAT, "look", "To er", ba={"type": "string"}))
    async with bench.opened() as opened:
        for number, tool in enumerate(offers, start=1):
            await opened.agent.say("ab ba?", tools=[tool])
            told = text_of(opened.session.asked[-1].input_ids)
            others = [other for other in offers if other != tool and json.dumps(other) in told]
            expect(json.dumps(tool) in told and not others, f"{tool} alone is offered now, asked is {told!r}")
            made = len(trained(opened))
            expect(made == number, f"a conversation with {number} offers of tools, one by one, is {made} trajectories")


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
