"""Sessions do not see each other, and each keeps to its limits, whatever its agents do.

Knows: many agents at once, clients that go away, limits, streams.
Does not know: keys (`keys`) or what is refused (`errors`).
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from areal_agentic.endpoint import SessionLimits
from areal_conformance.benches.endpoint import (
    EndpointBench,
    Gate,
    Opened,
    Told,
    answer,
    said,
    text_of,
    trained,
    words,
)
from areal_conformance.benches.endpoint_forms import CHAT, DIALOGUES, FORMS, Form
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed, PromptTooLong

_SESSIONS = "endpoint#sessions"
NUM_SESSIONS = 16


@check("endpoint.sessions.apart", level=Level.SINGLE, law=1, spec="endpoint#keys", deadline_s=120.0)
async def apart(bench: EndpointBench) -> None:
    """Many sessions at once, streamed or not, in every form: each is answered by its own engine, and keeps its own."""
    async with contextlib.AsyncExitStack() as stack:
        forms = list(DIALOGUES.values())
        many = []
        for number in range(NUM_SESSIONS):
            yields = Random(f"apart/{number}")
            many.append(
                await stack.enter_async_context(
                    bench.opened(forms[number % 3], at_generate=lambda _turn, draw=yields: _turns_of_the_loop(draw))
                )
            )
        await bench.soon(asyncio.gather(*(_talk(opened) for opened in many)), "the talk of many sessions", 30.0)
        await asyncio.gather(*(opened.agent.reward(number) for number, opened in enumerate(many)))
    for number, opened in enumerate(many):
        made = trained(opened)
        expect(len(made) == 1, f"the conversation of session {number} became {len(made)} trajectories")
        seen = (opened.open.reward, opened.open.num_answers)
        expect(seen == (number, 3), f"session {number} told {number} after 3 answers, kept are {seen}")


async def _turns_of_the_loop(draw: Random) -> None:
    for _ in range(draw.randint(0, 12)):
        await asyncio.sleep(0)


async def _talk(opened: Opened) -> None:
    for turn in range(3):
        seen = await opened.agent.say(f"stone {turn}?", stream=turn == 1)
        made = opened.session.asked[-1].generation
        assert made is not None
        due = text_of(made.output_ids[:-1])
        expect(seen == due, f"the engine of the session gave {due!r}, its agent reads {seen!r}")


@check("endpoint.sessions.aborted", level=Level.SINGLE, law=10, spec=_SESSIONS)
async def aborted(bench: EndpointBench) -> None:
    """A client that goes away takes its request along: the engine is told, nothing of it is kept, the rest goes on."""
    for stream in (False, True):
        gate = Gate()
        async with bench.opened() as opened:
            await opened.agent.say("stone?")
            opened.session.at_generate = gate
            endpoint = await bench.endpoint()
            gone = bench.agent(endpoint, opened.agent.key)
            gone.history = [*opened.agent.history]
            asking = asyncio.create_task(gone.say("ab ba?", stream=stream))
            await bench.soon(gate.began.get(), "a request on its way to the engine")
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            await bench.soon(gate.cancelled.get(), "the engine's request of a client that went away")
            opened.session.at_generate = None
            await opened.agent.say("well?")
            expect(opened.open.num_answers == 2, f"2 requests were answered, num_answers is {opened.open.num_answers}")
            expect(opened.open.failure is None, f"a client that went away is a failure: {opened.open.failure!r}")
            made = trained(opened)
            expect(len(made) == 1, f"a conversation beside a request that nobody waited for became {len(made)}")


@check("endpoint.sessions.limit", level=Level.SINGLE, law=8, spec=_SESSIONS)
async def limit(bench: EndpointBench) -> None:
    """One request more than `max_requests` is 429 with a reason, and reaches no engine; what was answered stays."""
    async with bench.opened(limits=SessionLimits(max_requests=3)) as opened:
        for _ in range(3):
            await opened.agent.say("stone?")
        opened.agent.history.append(CHAT.asked("once more?"))
        for _ in range(2):
            told = await opened.agent.ask()
            expect(
                told.status == 429 and told.reason, f"the 4th of 3 requests is answered with {told.status}: {told.body}"
            )
        expect(opened.session.begun == 3, f"the engine was asked {opened.session.begun} times, 3 were allowed")
        expect(opened.open.failure is None, f"a limit is a failure of the fleet: {opened.open.failure!r}")
        trained(opened)


@check("endpoint.sessions.limit_of_all", level=Level.SINGLE, law=8, spec=_SESSIONS)
async def limit_of_all(bench: EndpointBench) -> None:
    """Requests count against `max_requests` when they are made: also those that fail, and several at the same time."""
    gate = Gate()
    script = {0: GenerationFailed("it was lost"), 1: PromptTooLong("the prompt leaves no room")}
    async with bench.opened(
        limits=SessionLimits(max_requests=4), script=lambda turn: script.get(turn) or answer(turn)
    ) as opened:
        endpoint = await bench.endpoint()
        opened.agent.history.append(CHAT.asked("stone?"))
        failed = [(await opened.agent.ask()).status for _ in script]
        expect(all(status >= 400 for status in failed), f"two requests that failed are answered with {failed}")
        opened.session.at_generate = gate
        agents = [bench.agent(endpoint, opened.agent.key) for _ in range(5)]
        for number, agent in enumerate(agents):
            agent.history.append(CHAT.asked(f"{number}?"))
        asking = [asyncio.create_task(agent.ask()) for agent in agents]
        for _ in range(2):
            await bench.soon(gate.began.get(), "the third and fourth of four requests on their way to the engine")
        refused = set[asyncio.Task[Told]]()
        while len(refused) < 3:
            waiting = set(asking) - refused
            what = "the refusal of three of seven requests, where four may be made"
            done, _ = await bench.soon(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED), what)
            refused |= done
        gate.go.set()
        statuses = sorted([task.result().status for task in refused])
        expect(statuses == [429] * 3, f"the fifth to seventh of four requests are answered with {statuses}")
        answered = sorted([(await task).status for task in asking])
        expect(answered == [200, 200, 429, 429, 429], f"five requests where two may be made end with {answered}")
        trained(opened)


@check("endpoint.sessions.concurrency", level=Level.SINGLE, law=9, spec=_SESSIONS)
async def concurrency(bench: EndpointBench) -> None:
    """At most `concurrency` requests of a session are generated at once; the others wait, and are answered too."""
    gate, now, most = Gate(), 0, 0

    async def counted(turn: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await gate(turn)
            await asyncio.sleep(0)
        finally:
            now -= 1

    async with bench.opened(limits=SessionLimits(concurrency=2), at_generate=counted) as opened:
        endpoint = await bench.endpoint()
        agents = [bench.agent(endpoint, opened.agent.key) for _ in range(6)]
        asking = asyncio.gather(*(agent.say(f"{number}?") for number, agent in enumerate(agents)))
        for _ in range(2):
            await bench.soon(gate.began.get(), "two of two requests on their way to the engine")
        async with bench.opened() as another:
            await another.agent.say("meanwhile?")
        gate.go.set()
        await bench.soon(asking, "six requests of which two may be generated at once")
        expect(most <= 2, f"{most} requests of a session were generated at once, 2 may be")
        expect(len(trained(opened)) == 6, "six conversations of one session are not six trajectories")


@check("endpoint.sessions.told", level=Level.SINGLE, law=1, spec=_SESSIONS)
async def told(bench: EndpointBench) -> None:
    """`last` is the newest prompt and its first answer, `num_answers` and `metrics` count; all outlive the session."""
    async with bench.opened() as opened:
        expect(opened.open.last is None and opened.open.num_answers == 0, f"before anything: {opened.open.last}")
        expect(tuple(opened.open.trajectories(1.0)) == (), "a session that was asked nothing has trajectories")
        await opened.agent.say("stone?")
        await opened.agent.say("ab ba?", n=2)
    newest = [asked for asked in opened.session.asked if asked.input_ids == opened.session.asked[-1].input_ids]
    prompt, made = opened.open.last or ((), None)
    expect(tuple(prompt) == newest[0].input_ids, "`last` holds another prompt than the newest")
    first = opened.agent.history[-1]["content"]
    seen = None if made is None else text_of(made.output_ids[:-1])
    expect(seen == first, f"the first answer to the newest prompt was {first!r}, `last` holds {seen!r}")
    expect(opened.open.num_answers == 2, f"2 requests were answered, num_answers is {opened.open.num_answers}")
    counts = {name: opened.open.metrics.get(name) for name in ("agent/requests", "agent/trajectories")}
    expect(
        counts == {"agent/requests": 2, "agent/trajectories": 2}, f"2 requests and 2 trajectories are told as {counts}"
    )
    expect(len(trained(opened)) == 2, "an answer, and two that go on from it, are not two trajectories")


@check("endpoint.sessions.restarts", level=Level.SINGLE, law=5, spec=_SESSIONS)
async def restarts(bench: EndpointBench) -> None:
    """A conversation that was answered and begins anew is counted, with the reason; one that is new is not."""
    async with bench.opened() as opened:
        endpoint = await bench.endpoint()
        await opened.agent.say("stone?")
        await opened.agent.say("ab ba?")
        await bench.agent(endpoint, opened.agent.key).say("quite another?")
        seen = opened.open.metrics["agent/restarted"]
        expect(seen == 0, f"nothing began anew, agent/restarted is {seen}")
        opened.agent.history[1] = CHAT.said("ab, as I said")
        await opened.agent.say("well?")
        counted = {name: opened.open.metrics.get(f"agent/restarted{name}", 0) for name in ("", "/edited")}
        expect(set(counted.values()) == {1}, f"a conversation was edited and began anew, counted is {counted}")
        expect(len(trained(opened)) == 3, "two conversations, and one that began anew, are not three trajectories")
    async with bench.opened(script=lambda turn: answer(turn, text="abe"[turn])) as opened:
        for question in ("stone?", "ab ba?"):
            await opened.agent.say(question)
        opened.agent.history[2] = {**opened.agent.history[2], "name": "ann"}  # the template does not write it
        await opened.agent.say("and?")
        begun, seen = len(trained(opened)) - 1, opened.open.metrics["agent/restarted"]
        expect(seen == begun, f"a name was added to a question: {begun} trajectories begin, agent/restarted is {seen}")


@family("endpoint.streams.whole.{form}", FORMS, level=Level.SINGLE, law=1, spec="endpoint#tokens")
async def whole(bench: EndpointBench, form: Form) -> None:
    """The pieces of a stream by {form} are the whole answer, its end is told, and the tokens are kept all the same."""
    blank = f"ab{' ' * 300}er{chr(10) * 300}ba"
    texts = [words(3), "a", "ab\n\nba er", "caf\u00e9 \u4f60\u597d \U0001f600", blank]
    made = [answer(number, text=text, stop=_END[number % 2]) for number, text in enumerate(texts)]
    async with bench.opened(form, script=lambda turn: made[turn]) as opened:
        for text in texts:
            streamed = await opened.agent.post(form.path, form.body(form.question("stone?"), stream=True))
            seen = said(form, streamed, f"a stream by {form.name}")
            expect(len(streamed.events) > 1, f"asked for a stream, the agent is told {streamed.body!r}")
            expect(seen == text, f"the engine gave {text!r}, the pieces say {seen!r}")
            expect(form.ended(streamed.events), f"the stream of {text!r} ends with {streamed.events[-1]}")
        trained(opened)


_END = (StopReason.STOP, StopReason.LENGTH)
