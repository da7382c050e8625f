"""What an agent is told is what the engine gave: why an answer ended, how long it is, which of several it is.

Knows: what each API calls that, and streams.
Does not know: tokens of trajectories (`tokens`, `masks`).
"""

from __future__ import annotations

from itertools import product

from areal_conformance.benches.endpoint import EndpointBench, answer, answered, grown, read, trained
from areal_conformance.benches.endpoint_forms import CHAT, DIALOGUES, FORMS, MESSAGES, TEXT, Form
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason

_ANSWERS = "endpoint#answers"
_USAGE = {"stream_options": {"include_usage": True}}
"""What clients of OpenAI's older APIs say to have usage told at the end of a stream."""


def _streamed(form: Form) -> Json:
    return {"stream": True, **(_USAGE if form in (CHAT, TEXT) else {})}


@family("endpoint.answers.ended.{form}", FORMS, level=Level.SINGLE, law=1, spec=_ANSWERS)
async def ended(bench: EndpointBench, form: Form) -> None:
    """An answer by {form} that was cut is told as cut, one that came to its end as that, streamed or not."""
    for stop, name in ((StopReason.STOP, "stop"), (StopReason.LENGTH, "length")):
        async with bench.opened(form, script=lambda turn, stop=stop: answer(turn, stop=stop)) as opened:
            for more in ({}, _streamed(form)):
                told = await opened.agent.post(form.path, form.body(form.question("stone?"), **more))
                seen = form.reason(answered(form, told, form.name))
                due = form.reasons[name]
                what = f"{form.name}{', streamed' if more else ''}: an answer that ended with {stop!s}"
                expect(seen == due, f"{what} is told to have ended with {seen!r}, not {due!r}")
            trained(opened)


@family("endpoint.answers.empty.{form}", DIALOGUES, level=Level.SINGLE, law=1, spec=_ANSWERS)
async def empty(bench: EndpointBench, form: Form) -> None:
    """An answer by {form} that ended before it said anything is one all the same, and is gone on with."""
    for more in ({}, _streamed(form)):
        async with bench.opened(form, script=lambda turn: answer(turn, text="" if turn == 0 else "abba")) as opened:
            said_first = await opened.agent.say("stone?", **more)
            expect(not said_first, f"{form.name}: the policy said nothing, the agent is told {said_first!r}")
            await opened.agent.say("well?")
            grown(opened)
            expect(len(trained(opened)) == 1, f"{form.name}: a conversation with an empty answer became several")


@family("endpoint.answers.usage.{form}", FORMS, level=Level.SINGLE, law=1, spec=_ANSWERS)
async def usage(bench: EndpointBench, form: Form) -> None:
    """Usage told by {form} counts the tokens of the prompt once, and those of every answer with their ends."""
    async with bench.opened(form) as opened:
        for more in ({}, _streamed(form), *([{"n": 2}] if form in (CHAT, TEXT) else [])):
            before = len(opened.session.asked)
            told = await opened.agent.post(form.path, form.body(form.question("stone ab?"), **more))
            made = answered(form, told, form.name)
            given = opened.session.asked[before:]
            due = (len(given[0].input_ids), sum(len(one.generation.output_ids) for one in given if one.generation))
            expect(made.get("usage"), f"{form.name} with {more}: no usage is told")
            seen = form.usage(made)
            expect(seen == due, f"{form.name} with {more}: prompt and answers have {due} tokens, usage tells {seen}")
            total = made["usage"].get("total_tokens", sum(due))
            expect(total == sum(due), f"{form.name} with {more}: of {due} tokens usage tells a total of {total}")


@family(
    "endpoint.answers.stops.{form}",
    {name: form for name, form in FORMS.items() if form.stops},
    level=Level.SINGLE,
    law=1,
    spec=_ANSWERS,
)
async def stops(bench: EndpointBench, form: Form) -> None:
    """By {form} an answer that stops of the request end is told up to the first in it, and gone on with as a whole."""
    said_whole = "abba er"
    made = answer(1, text=said_whole, stop=StopReason.LENGTH, stop_reason=StopReason.STOP)
    for named, due in ((("er", "a er"), "abb"), (("stone",), said_whole), (("er", "bb"), "a")):
        first = min((stop for stop in named if stop in said_whole), key=said_whole.index, default=None)
        for order, more in product((named, named[::-1]), ({}, _streamed(form))):
            async with bench.opened(form, script=lambda _turn: made) as opened:
                agent = opened.agent
                given = order[0] if len(order) == 1 and form is not MESSAGES else list(order)
                body = form.body(form.question("stone?"), **{form.stops: given}, **more)
                told = answered(form, await agent.post(form.path, body), form.name)
                what = f"{form.name}{', streamed' if more else ''}: of {said_whole!r}, ended by one of {list(order)},"
                expect(form.text(told) == due, f"{what} is told {form.text(told)!r}, not {due!r}")
                if form is MESSAGES:
                    seen = told.get("stop_sequence")
                    expect(seen == first, f"{what} is told that {seen!r} ended it, not {first!r}")
                if form.name in DIALOGUES:
                    agent.history = [*form.question("stone?"), *form.echo(told)]
                    await agent.say("well?")
                    grown(opened)
                trained(opened)


@check("endpoint.answers.choices", level=Level.SINGLE, law=1, spec=_ANSWERS)
async def choices(bench: EndpointBench) -> None:
    """Of several answers, streamed or not, each is told whole under its index, and with its own log-probs."""
    for form, flag in ((CHAT, True), (TEXT, 1)):
        async with bench.opened(form) as opened:
            for more in ({}, _streamed(form)):
                before = len(opened.session.asked)
                body = form.body(form.question("stone?"), n=3, logprobs=flag, **more)
                made = answered(form, await opened.agent.post(form.path, body), form.name)
                given = [one.generation for one in opened.session.asked[before:] if one.generation]
                due = sorted((read(one.output_ids), list(one.logprobs)) for one in given)
                seen = sorted((_text(form, choice), _logprobs(form, choice)) for choice in made["choices"])
                what = f"{form.name}{', streamed' if more else ''}: the engine gave"
                expect(seen == due, f"{what} {due}, the choices say {seen}")
                indices = [choice["index"] for choice in made["choices"]]
                expect(sorted(indices) == [0, 1, 2], f"{form.name}: three answers have the indices {indices}")
            trained(opened)


def _text(form: Form, choice: Json) -> str:
    return str(choice["message"]["content"] if form is CHAT else choice["text"])


def _logprobs(form: Form, choice: Json) -> list[float]:
    inside = choice["logprobs"] or {}
    return [one["logprob"] for one in inside.get("content", ())] if form is CHAT else inside.get("token_logprobs", [])
