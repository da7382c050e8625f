"""Versions on their way into this process, and the one that is held ready.

Knows: several may arrive at once, each can be given up, one is held.
Does not know: the form of staged weights (`staging`), who proves them, or what serves (`updates`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from attrs import Factory, define

from areal_core.contract.errors import GenerationFailed, WeightSyncError
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving.staging import StagedWeights, Staging

T = TypeVar("T")


@define(eq=False)
class _Arrival:
    """One receive under way. Whoever gives it up sets both."""

    version: int
    stop: threading.Event = Factory(threading.Event)
    given_up: asyncio.Event = Factory(asyncio.Event)


class Arrivals:
    """Stages versions one after another in a thread of its own. One event loop.

    Args:
        lost: tells why nothing can arrive any more, None while it can.
    """

    def __init__(self, staging: Staging, lost: Callable[[], GenerationFailed | None]) -> None:
        self.staging = staging
        self._lost = lost
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="areal-staging")
        self._under_way: set[_Arrival] = set()
        self.held: StagedWeights | None = None

    async def receive(
        self,
        source: WeightSource,
        version: int,
        *,
        served: int,
        prove: Callable[[StagedWeights], Awaitable[None]] | None = None,
    ) -> Receipt:
        """Stage one version, have it proved, then hold it in place of any other that is held.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: what is held is untouched.
        """
        arrival = _Arrival(version)
        self._under_way.add(arrival)
        try:
            staged = await self._staged(arrival, source, served)
            try:
                if prove is not None:
                    await self._unless_given_up(arrival, prove(staged))
            except BaseException:
                staged.close()
                raise
        finally:
            self._under_way.discard(arrival)
        self.hold(staged)
        return staged.receipt

    def hold(self, staged: StagedWeights) -> None:
        """Hold a version in place of any other."""
        before, self.held = self.held, staged
        if before is not None:
            before.close()

    def abort(self) -> None:
        """Drop what is held and what arrives. Idempotent."""
        for arrival in self._under_way:
            arrival.stop.set()
            arrival.given_up.set()
        held, self.held = self.held, None
        if held is not None:
            held.close()

    def close(self) -> None:
        """Free everything. A source that blocks the staging thread frees its part when it gives up."""
        self.abort()
        self._thread.shutdown(wait=False)

    async def _staged(self, arrival: _Arrival, source: WeightSource, served: int) -> StagedWeights:
        work = self._thread.submit(self.staging.receive, source, arrival.version, served=served, stop=arrival.stop)
        try:
            return await self._unless_given_up(arrival, asyncio.wrap_future(work))
        except BaseException:
            arrival.stop.set()
            if work.cancel():
                source.close()
            else:
                work.add_done_callback(_discard)
            raise

    async def _unless_given_up(self, arrival: _Arrival, answer: Awaitable[T]) -> T:
        task, given_up = asyncio.ensure_future(answer), asyncio.ensure_future(arrival.given_up.wait())
        try:
            await asyncio.wait((task, given_up), return_when=asyncio.FIRST_COMPLETED)
            if arrival.given_up.is_set():
                raise self._lost() or WeightSyncError(f"receiving version {arrival.version} was aborted")
            return task.result()
        finally:
            task.cancel()
            given_up.cancel()
            await asyncio.gather(task, given_up, return_exceptions=True)


def not_held(held: StagedWeights | None, version: int) -> WeightSyncError:
    """Return the error of a commit of what is not held."""
    return WeightSyncError(
        f"version {version} cannot be committed",
        why="nothing is held" if held is None else f"version {held.version} is held",
        fix="call receive_weights for it first",
    )


def _discard(work: Future[StagedWeights]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
