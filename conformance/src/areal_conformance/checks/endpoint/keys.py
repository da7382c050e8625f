"""A key is a session's, while it is open: nobody guesses it, nobody else has it, and it opens nothing afterwards.

Knows: how keys are given out and taken.
Does not know: how they are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

from areal_agentic.endpoint import SessionLimits
from areal_conformance.benches.endpoint import Agent, EndpointBench, Gate, answered, grown, said, trained
from areal_conformance.benches.endpoint_forms import CHAT, FORMS, RESPONSES
from areal_conformance.benches.endpoint_streams import Json
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_KEYS = "endpoint#keys"
_BITS = 128
_MANY = 64


@check("endpoint.keys.unguessable", level=Level.SINGLE, law=11, spec=_KEYS)
async def unguessable(bench: EndpointBench) -> None:
    """Keys are of enough letters that change at random, 128 bits, and none is given out twice, in whatever order."""
    endpoint, other = await bench.endpoint(), bench.fresh()
    await other.start()
    keys: list[str] = []
    for where in (endpoint, other):
        with contextlib.ExitStack() as stack:
            keys += [stack.enter_context(where.open(bench.session())).key for _ in range(_MANY)]
        for _ in range(_MANY):  # one after another
            with where.open(bench.session()) as opened:
                keys.append(opened.key)
    expect(len(set(keys)) == len(keys), f"{len(keys) - len(set(keys))} of {len(keys)} keys were given out before")
    places = [{key[place] for key in keys} for place in range(min(map(len, keys)))]
    bits = sum(math.log2(len(letters)) for letters in places)
    told = f"the letters that change in {len(keys)} keys are worth {bits:.0f} bits, {_BITS} are due: {keys[:2]}"
    expect(bits >= _BITS, told)


@check("endpoint.keys.required", level=Level.SINGLE, law=11, spec=_KEYS)
async def required(bench: EndpointBench) -> None:
    """Without a key, or with a wrong one, every path is 401 with a reason, and nothing reaches engine or session."""
    async with bench.opened() as opened:
        url, key = (await bench.endpoint()).url, opened.agent.key
        wrong = {"none": "", "another": "areal-no-such-key", "a part of one": key[:-1], "a longer one": f"{key}x",
                 "one in other letters": key.swapcase()}  # fmt: skip
        for what, given in wrong.items():
            agent = Agent(http=bench.http, url=url, key=given)
            for form in FORMS.values():
                body = form.body(form.question("stone?"))
                for headers in (
                    {"authorization": f"Bearer {given}".strip()},
                    {"authorization": "", "x_api_key": given},
                ):
                    told = await agent.post(form.path, body, **headers)
                    expect(told.status == 401, f"{form.path} with {what} is answered with {told.status}: {headers}")
                    expect(told.reason, f"{form.path} with {what} is refused without a reason: {told.body}")
            told = await agent.post("/reward", {"reward": 1.0})
            expect(told.status == 401, f"a reward with {what} is answered with {told.status}")
        seen = (opened.session.begun, opened.open.num_answers, opened.open.reward)
        expect(seen == (0, 0, None), f"without the key the engine was asked, and the session told: {seen}")


@check("endpoint.keys.taken", level=Level.SINGLE, law=11, spec=_KEYS)
async def taken(bench: EndpointBench) -> None:
    """A key is taken as a bearer token, in letters of any size, and as `x-api-key`, whatever the form of asking."""
    async with bench.opened() as opened:
        url = (await bench.endpoint()).url
        agent = Agent(http=bench.http, url=url, key=opened.agent.key)
        for form in FORMS.values():
            body = form.body(form.question("stone?"))
            for scheme in ("Bearer", "bearer"):
                named = await agent.post(form.path, body, authorization=f"{scheme} {agent.key}", x_api_key="")
                said(form, named, f"{form.path} with a token of the scheme {scheme!r}")
            by_name = await agent.post(form.path, body, authorization="", x_api_key=agent.key)
            said(form, by_name, f"{form.path} with x-api-key")
        trained(opened)


@check("endpoint.keys.closed", level=Level.SINGLE, law=11, spec=_KEYS)
async def closed(bench: EndpointBench) -> None:
    """After its session a key is 401, also if the episode raised; and a request on its way then ends, unrecorded."""
    gate = Gate()
    with contextlib.suppress(ZeroDivisionError):
        async with bench.opened() as opened:
            await opened.agent.say("stone?")
            opened.session.at_generate = gate
            endpoint = await bench.endpoint()
            late = bench.agent(endpoint, opened.agent.key)
            late.history = [CHAT.asked("late?")]
            asking = asyncio.create_task(late.ask())
            await bench.soon(gate.began.get(), "a request on its way to the engine")
            raise ZeroDivisionError
    await bench.soon(gate.cancelled.get(), "the engine's request of a session that is over")
    with contextlib.suppress(Exception):  # a connection that was closed, as well as an answer
        told = await bench.soon(asking, "a request of a session that is over")
        expect(told.status != 200, "a request of a session that is over is answered")
    opened.session.at_generate = None
    for _ in range(2):
        told = await opened.agent.ask()
        expect(told.status == 401 and told.reason, f"the key of a session that is over is answered with {told.status}")
    reward = await opened.agent.reward(1.0)
    expect(reward.status == 401, f"a reward after the session is answered with {reward.status}")
    seen = (opened.open.num_answers, opened.open.reward, opened.session.begun)
    expect(seen == (1, None, 2), f"the session was over, and answers, reward and engine know of more: {seen}")
    trained(opened)


@check("endpoint.keys.unsaid", level=Level.SINGLE, law=11, spec=_KEYS)
async def unsaid(bench: EndpointBench) -> None:
    """Nothing that is told, answers, streams, refusals or headers, holds a key, of the session or of another."""
    async with bench.opened() as other, bench.opened(limits=SessionLimits(max_requests=9)) as opened:
        told = [await opened.agent.get("/models"), await opened.agent.post("/nowhere", {})]
        for form in FORMS.values():
            for more in ({}, {"stream": True}):
                told.append(await opened.agent.post(form.path, form.body(form.question("stone?"), **more)))
            told.append(await opened.agent.post(form.path, {}))
        told += [await opened.agent.post(CHAT.path, CHAT.body(CHAT.question("ab?"))) for _ in range(2)]
        told += [await opened.agent.reward(0.5), await opened.agent.reward("much")]
        stranger = bench.agent(await bench.endpoint(), "areal-no-such-key")
        told.append(await stranger.reward(0.5))
        for key in (opened.agent.key, other.agent.key):
            seen = [f"{one.status} {one.raw[:200]}" for one in told if key in one.raw]
            expect(not seen, f"a key is told: {seen[:2]}")


@check("endpoint.keys.responses", level=Level.SINGLE, law=11, spec=_KEYS)
async def responses(bench: EndpointBench) -> None:
    """A `previous_response_id` is gone on from in its own session, or refused; that of another session always is."""
    async with bench.opened(RESPONSES) as opened, bench.opened(RESPONSES) as other:
        made = answered(RESPONSES, await opened.agent.post("/responses", _named("stone?")), "a response")
        for agent, previous in ((other.agent, made["id"]), (opened.agent, "resp_none"), (other.agent, "resp_none")):
            told = await agent.post("/responses", _named("well?", previous))
            what = "of another session" if previous == made["id"] else "that nobody has"
            expect(400 <= told.status < 500 and told.reason, f"a response {what} is answered with {told}")
        begun = (opened.session.begun, other.session.begun)
        expect(begun == (1, 0), f"responses that are not there reached the engines: {begun}")
        told = await opened.agent.post("/responses", _named("well?", made["id"]))
        if told.status == 200:
            grown(opened)
        else:
            expect(400 <= told.status < 500 and told.reason, f"a response of the session is answered with {told}")
        expect(len(trained(opened)) == 1, "a response that is gone on from is not one trajectory")


def _named(question: str, previous: str = "") -> Json:
    more = {"previous_response_id": previous} if previous else {}
    return RESPONSES.body(RESPONSES.question(question), **more)
