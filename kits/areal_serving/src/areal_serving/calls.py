"""Requests at the server: sent, sent again when it is lost, ended.

Knows: what a continued request needs, what an answer that is no success means, who is in flight.
Does not know: places and pauses (`slots`, `engine`), or the form of a request on the wire (`dialect`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable

from attrs import define, evolve
from xxhash import xxh3_64_intdigest

from areal_core.contract.errors import ArealError, BatchError, GenerationFailed
from areal_core.contract.inference import GenerationRequest, PauseMode
from areal_serving.dialect import Call, Dialect, Reply
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.outputs import NOTHING
from areal_serving.profiling import ServedTraces
from areal_serving.server_lifecycle import MAX_ATTEMPTS, ServerLifecycle
from areal_serving.work import Work

_AGAIN_S = 0.05
"""Between two orders to end calls, of which some may reach the server only after the first."""
_SEED_BITS = 2**63 - 1


@define
class State:
    """What the server serves, or one that is started again must: the version, and whether it is paused.

    `policy` is the server's name of the adapter that the policy is, "" where it is the model alone.
    """

    version: int = 0
    paused: PauseMode | None = None
    policy: str = ""

    def ends_calls(self) -> bool:
        """Tell whether what is in flight is to come back as it is."""
        return self.paused is PauseMode.ABORT


class Calls:
    """The calls of one engine.

    Args:
        traces: told which step requests belong to; a step's first one begins its record.
        end_ids: tokens that end an output of this model.
        cache_space: tells which prefix-cache entries a request may use.
    """

    def __init__(
        self,
        dialect: Dialect,
        server: ServerLifecycle,
        state: State,
        work: Work,
        *,
        traces: ServedTraces,
        end_ids: tuple[int, ...],
        cache_space: Callable[[GenerationRequest], str],
        clock: Callable[[], float],
    ) -> None:
        self._dialect = dialect
        self._server = server
        self._state = state
        self._work = work
        self._traces = traces
        self._end_ids = end_ids
        self._cache_space = cache_space
        self._clock = clock
        self._numbers = itertools.count(1)
        self._flying: dict[str, asyncio.Future[None]] = {}
        self._busy_s = 0.0
        self._busy_since: float | None = None

    @property
    def num_running(self) -> int:
        """Return how many the server has, or is about to have."""
        return len(self._flying)

    @property
    def expected(self) -> bool:
        """Return whether the server ought to compute tokens."""
        return bool(self._flying) and self._state.paused is None

    def busy_s(self) -> float:
        """Return the seconds in which tokens ought to have been computed."""
        self.note()
        return self._busy_s

    def note(self) -> None:
        """Take note of the time: `expected` may have changed, or is about to."""
        now = self._clock()
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
        self._busy_since = now if self.expected else None

    async def answered(self, request: GenerationRequest, budget: int) -> Reply:
        """Return the reply of the server, or of the one after it.

        Raises:
            BatchError: the server refuses the request.
            GenerationFailed: it fails it, or too many servers were lost.
        """
        lost = 0
        if self._traces.wants(self._state.version + 1):  # beside the request: nothing may come between it and its place
            self._work.later(self._traces.begin(self._state.version + 1))
        while lost < MAX_ATTEMPTS:
            if self._state.ends_calls():
                return NOTHING
            api = await self._server.api()
            if self._state.ends_calls():
                return NOTHING
            version, call = self._state.version, self.call_for(request, budget)
            try:
                reply = await self._sent(api, call)
            except ServerGone:
                lost += 1
                await self._server.gone(api)
                continue
            except ServerAnswer as error:
                if error.status == 503 and self._state.ends_calls():
                    return NOTHING
                raise self._refused(request, error) from error
            if not all(map(math.isfinite, reply.logprobs)):
                raise GenerationFailed(
                    f"{self._dialect.name} gave request {request.request_id!r} a log-prob that is not finite",
                    why="the weights it serves, or what they compute, are not finite",
                    fix="look at the trainer's loss and gradient norm; the next finite weights serve again",
                )
            if version == self._state.version or not reply.spans or reply.spans[0].version == version:
                return reply
            if reply.cached_tokens == 0:
                return reply
            # It was on its way during an update and began after it: keys and values of the weights
            # before may have been found for it in the prefix cache.
            if reply.finish == "abort":
                return NOTHING
        raise GenerationFailed(
            f"request {request.request_id!r} had no answer {MAX_ATTEMPTS} times",
            why="servers ended or dropped the connection while they computed",
            fix="read the worker's log",
        )

    async def drain(self) -> None:
        """Wait until all came back, with the server paused; one that reached it after the pause is ended.

        Raises:
            GenerationFailed: the server does not end calls.
        """
        while self._flying:
            waiting = dict(self._flying)
            if self._server.serving is not None:
                try:
                    await self._dialect.abort(self._server.serving, list(waiting))
                except ServerGone:
                    pass  # those who wait for its answers see to it
                except ServerAnswer as error:
                    raise GenerationFailed(f"{self._dialect.name} does not end requests", why=str(error)) from error
            await asyncio.wait(waiting.values(), timeout=_AGAIN_S)

    async def landed(self) -> None:
        """Wait until all came back by themselves."""
        while self._flying:
            await asyncio.wait(tuple(self._flying.values()))

    async def _sent(self, api: Api, call: Call) -> Reply:
        self._flying[call.server_id] = asyncio.get_running_loop().create_future()
        self.note()
        try:
            reply = await self._dialect.generate(api, call)
        except asyncio.CancelledError:
            self._work.later(self._end(api, call.server_id))
            raise
        except BaseException:
            self._landed(call.server_id)
            raise
        self._landed(call.server_id)
        return reply

    async def _end(self, api: Api, server_id: str) -> None:
        """End a call whose caller is gone; it counts as running until the server was told."""
        try:
            with contextlib.suppress(ServerGone, ServerAnswer):
                await self._dialect.abort(api, [server_id])
        finally:
            self._landed(server_id)

    def _landed(self, server_id: str) -> None:
        self.note()
        self._flying.pop(server_id).set_result(None)
        self.note()

    def call_for(self, request: GenerationRequest, budget: int) -> Call:
        request = evolve(request, adapter=request.adapter or self._state.policy)
        sampling, prior = request.sampling, request.num_prior
        own = () if sampling.ignore_eos else self._end_ids
        return Call(
            request=request,
            server_id=f"areal-{next(self._numbers)}",
            max_tokens=budget,
            min_tokens=min(max(0, sampling.min_new_tokens - prior), budget),
            seed=seed_of_part(sampling.seed, prior),
            end_ids=tuple(dict.fromkeys((*own, *sampling.stop_token_ids))),
            cache_space=self._cache_space(request),
        )

    def _refused(self, request: GenerationRequest, error: ServerAnswer) -> ArealError:
        if error.status in (400, 422):
            return BatchError(f"{self._dialect.name} refused request {request.request_id!r}", why=error.text)
        return GenerationFailed(f"{self._dialect.name} failed request {request.request_id!r}", why=str(error))


def seed_of_part(seed: int | None, prior: int) -> int | None:
    """Return the seed of one part of a request: a continued one must not draw its first numbers again."""
    if seed is None or prior == 0:
        return seed
    return xxh3_64_intdigest(f"{seed}+{prior}".encode()) & _SEED_BITS
