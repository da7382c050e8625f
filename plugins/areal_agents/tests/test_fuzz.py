"""Whatever arrives, the endpoint answers with a reason, and never with an error of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agentic.endpoint import SessionLimits
from areal_agents.endpoint import Endpoint

from .speaking import Speaking

PLAIN = st.none() | st.booleans() | st.integers(-3, 300) | st.floats(width=16) | st.text(max_size=6)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "x", ""]), "content": VALUES})
NAMES = (
    "model",
    "n",
    "max_tokens",
    "stop",
    "stream",
    "stream_options",
    "tools",
    "logprobs",
    "prompt",
    "messages",
    "reward",
)
BODIES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6) | st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=3) | VALUES, "tools": st.lists(VALUES, max_size=2) | VALUES}
)
PATHS = st.sampled_from(["chat/completions", "completions", "reward", "models", "nothing", ""])


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.tuples(PATHS, BODIES | VALUES), min_size=1, max_size=8), raw=st.binary(max_size=20))
def test_the_fault_is_never_the_endpoints(asked: list[tuple[str, Any]], raw: bytes) -> None:
    async def run() -> None:
        endpoint = Endpoint()
        await endpoint.start()
        try:
            with endpoint.open(Speaking(), SessionLimits(max_requests=10**6)) as episode:
                async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {episode.key}"}) as client:
                    bodies = [(path, json.dumps(body).encode()) for path, body in asked]
                    for path, body in [*bodies, ("chat/completions", raw)]:
                        kind = {"Content-Type": "application/json"}
                        async with client.post(f"{endpoint.url}/{path}", data=body, headers=kind) as answer:
                            text = await answer.text()
                            assert answer.status < 500, (path, body, text)
                            assert answer.status == 200 or json.loads(text)["error"]["message"], (path, body)
        finally:
            await endpoint.close()
        assert episode.failure is None

    asyncio.run(run())
