"""Options of an endpoint change what they say: its checks again with each variant of the adapter.

Knows: which checks see that an agent is told, and episodes hold, what the engine gave.
Does not know: what an option means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_agentic.endpoint import AgentEndpoint
from areal_conformance.benches.endpoint import EndpointBench
from areal_conformance.check import Level, check
from areal_conformance.varied import made_again, shown

_CHECKS = (
    "endpoint.tokens.exact.completions",
    "endpoint.tokens.turns.chat",
    "endpoint.tokens.turns.messages",
    "endpoint.tokens.turns.responses",
    "endpoint.tokens.tools.chat",
    "endpoint.answers.usage.chat",
    "endpoint.masks.answers",
)


@check("endpoint.options.checks", level=Level.SINGLE, law=1, spec="endpoint", deadline_s=120.0)
async def again(bench: EndpointBench) -> None:
    """With each variant's options agents are told, and episodes hold, what the engine gave."""
    await made_again(bench, _CHECKS)


@check("endpoint.options.shown", level=Level.SINGLE, law=8, spec="endpoint")
async def effect(bench: EndpointBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, lambda: _started(bench))


@asynccontextmanager
async def _started(bench: EndpointBench) -> AsyncIterator[AgentEndpoint]:
    endpoint = bench.fresh()
    await bench.soon(endpoint.start(), "the start of an endpoint")
    try:
        yield endpoint
    finally:
        await endpoint.close()
