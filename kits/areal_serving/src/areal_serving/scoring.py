"""Log-probs of given tokens, from a server whose weights may change while it computes them.

Knows: what is checked before anything is sent, and when an answer is void.
Does not know: routes and payloads; the backend asks.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from areal_core.contract.errors import BatchError, GenerationFailed
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import GenerationRequest, SamplingParams
from areal_serving.engine import Running
from areal_serving.http import Api
from areal_serving.requests import check_request
from areal_serving.slots import Interrupted

Ask = Callable[[Api, int], Awaitable[list[float] | None]]
"""Asks the server, which serves the version given; None if it ended the request before it was computed."""

_ATTEMPTS = 8
_ONE_TOKEN = SamplingParams(max_new_tokens=1)


async def scores(running: Running, input_ids: Sequence[int], temperature: float, ask: Ask) -> list[float]:
    """Return log p(token t | tokens < t) for each token, 0.0 for the first, all of one version of the weights.

    Raises:
        BatchError, PromptTooLong: of the tokens.
        GenerationFailed: the server was lost, or paused with `abort`, too often; or a score is not finite.
    """
    if temperature <= 0:
        raise BatchError(f"temperature is {temperature}, scores need a positive one")
    check_request(
        GenerationRequest(request_id=RequestId("score"), input_ids=input_ids, sampling=_ONE_TOKEN),
        vocabulary=running.model.vocab_size,
        context_length=running.facts.context_length,
    )
    if len(input_ids) == 1:
        return [0.0]
    for _ in range(_ATTEMPTS):
        found = await _once(running, ask)
        if found is not None and not all(map(math.isfinite, found)):
            raise GenerationFailed("the scores are not finite", why="nor are the weights, or what they compute")
        if found is not None:
            return found
    raise GenerationFailed("scores were interrupted too often", fix="ask again")


async def _once(running: Running, ask: Ask) -> list[float] | None:
    """Return the scores, or None if a pause or an update came between."""
    try:
        await running.slots.acquire()
    except Interrupted:
        return None
    try:
        version = running.state.version
        found = await running.server.asked(lambda api: ask(api, version))
    finally:
        running.slots.release()
    return found if version == running.state.version else None
