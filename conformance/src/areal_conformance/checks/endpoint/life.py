"""An endpoint listens on loopback from `start` to `close`, and leaves nothing behind.

Knows: ports, tasks, requests in flight.
Does not know: the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from urllib.parse import urlsplit

from areal_agentic.endpoint import AgentEndpoint
from areal_conformance.benches.endpoint import EndpointBench, Gate, trained
from areal_conformance.benches.endpoint_forms import CHAT
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect


def _port(endpoint: AgentEndpoint) -> int:
    return urlsplit(endpoint.url).port or 0


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


@check("endpoint.life.loopback", level=Level.SINGLE, law=11, spec="endpoint#start")
async def loopback(bench: EndpointBench) -> None:
    """It listens on 127.0.0.1, at the port its URL names, and at no other address of the machine."""
    endpoint = await bench.endpoint()
    parts = urlsplit(endpoint.url)
    expect(isinstance(endpoint, AgentEndpoint), f"the factory made a {type(endpoint).__name__}, no AgentEndpoint")
    expect(parts.scheme == "http" and parts.hostname == "127.0.0.1", f"its URL is {endpoint.url}")
    expect(parts.path == "/v1", f"OpenAI's clients take a base URL that ends with /v1, this is {endpoint.url}")
    expect(await _listens("127.0.0.1", _port(endpoint)), f"nothing listens at {endpoint.url}")
    others = ["127.0.0.2", *_addresses()]
    heard = [host for host in others if await _listens(host, _port(endpoint))]
    expect(not heard, f"it listens on {heard} as well: whoever reaches this machine can ask")


def _addresses() -> list[str]:
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        return sorted({str(one[4][0]) for one in found} - {"127.0.0.1"})
    return []


@check("endpoint.life.start", level=Level.SINGLE, law=10, spec="endpoint#start")
async def start(bench: EndpointBench) -> None:
    """Started again it is as it was, and two endpoints of one process have ports and keys of their own."""
    one, other = bench.fresh(), bench.fresh()
    await bench.soon(one.start(), "the start of an endpoint")
    await bench.soon(other.start(), "the start of another endpoint")
    url = one.url
    await bench.soon(one.start(), "a second start")
    expect(one.url == url, f"started again, its URL is {one.url}, it was {url}")
    expect(one.url != other.url, f"two endpoints have one URL: {url}")
    async with bench.opened(endpoint=one) as opened:
        await opened.agent.say("stone?")
        astray = bench.agent(other, opened.agent.key)
        astray.history = [CHAT.asked("stone?")]
        told = await astray.ask()
        expect(told.status == 401, f"the key of one endpoint is answered by another with {told.status}")
        trained(opened)


@check("endpoint.life.close", level=Level.SINGLE, law=10, spec="endpoint#close")
async def close(bench: EndpointBench) -> None:
    """Closed, its port is free and no task is left; closed again, or never started, it closes all the same."""
    never = bench.fresh()
    await bench.soon(never.close(), "the close of an endpoint that was never started")
    before = asyncio.all_tasks()
    endpoint = bench.fresh()
    await endpoint.start()
    port = _port(endpoint)
    async with bench.opened(endpoint=endpoint) as opened:
        await opened.agent.say("stone?")
        await opened.agent.say("ab ba?", stream=True)
    await bench.soon(endpoint.close(), "close")
    expect(not await _listens("127.0.0.1", port), f"after close something listens at port {port}")
    await bench.soon(endpoint.close(), "a second close")
    for _ in range(20):
        await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]
    expect(not left, f"tasks left behind by an endpoint that is closed: {left}")
    trained(opened)


@check("endpoint.life.in_flight", level=Level.FAULTS, law=10, spec="endpoint#close")
async def in_flight(bench: EndpointBench) -> None:
    """Closed while requests are in flight, streams and waiting ones among them, it cancels them all and ends soon."""
    gate = Gate()
    endpoint = bench.fresh()
    await endpoint.start()
    async with bench.opened(endpoint=endpoint, at_generate=gate) as opened:
        agents = [bench.agent(endpoint, opened.agent.key) for _ in range(4)]
        asking = [
            asyncio.create_task(agent.say("stone?", stream=number % 2 == 1)) for number, agent in enumerate(agents)
        ]
        for _ in asking:
            await bench.soon(gate.began.get(), "a request on its way to the engine")
        await bench.soon(endpoint.close(), "close with requests in flight")
        for _ in asking:
            await bench.soon(gate.cancelled.get(), "the engine's request of an endpoint that is closed")
        ends = await bench.soon(asyncio.gather(*asking, return_exceptions=True), "requests of a closed endpoint")
        answered = [end for end in ends if isinstance(end, str)]
        expect(not answered, f"requests that were cancelled are answered with {answered}")
        expect(opened.open.num_answers == 0, f"nothing was answered, num_answers is {opened.open.num_answers}")
        expect(tuple(opened.open.trajectories(1.0)) == (), "requests that were cancelled have trajectories")


@check("endpoint.life.forgets", level=Level.SINGLE, law=10, spec="endpoint#sessions")
async def forgets(bench: EndpointBench) -> None:
    """Sessions that are over are let go of: what a run has made so far is not in memory."""
    count, left = 12, []
    for number in range(count):
        async with bench.opened() as opened:
            await opened.agent.say("stone?", stream=number % 2 == 1)
            await opened.agent.say("ab ba?")
            left.append(weakref.ref(opened.session))
        del opened
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()
    held = sum(session() is not None for session in left)  # a connection may hold on to its last request
    expect(held <= count // 3, f"{held} of {count} sessions that are over are still held")
