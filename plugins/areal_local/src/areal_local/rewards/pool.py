"""Rewards, each in a process that can be killed.

Knows: how to ask a pool of processes for a score, and every way that can end.
Does not know: what the function computes; the processes find it by name (`child`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from pebble import ProcessExpired, ProcessPool

from areal_core.contract import errors
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_local.rewards import child
from areal_local.rewards.child import RewardTarget

MAX_TRIP = 64
"""Completions that travel to a process at once, at most."""
TRIP_S = 0.005
"""Work in one trip, as far as the rewards before tell: what takes longer than this travels alone."""


@frozen(eq=False)
class _Asked:
    value: RewardInput
    answer: asyncio.Future[RewardResult]


class RewardPool:
    """Score completions in `workers` processes, each call within `timeout_s` seconds.

    A call that hangs has its process killed and another one started; the others are not disturbed.
    Quick rewards travel several at a time; if one of them then hangs or ends the process, all of
    that trip are scored again, each alone, so the function may see a completion twice.
    """

    def __init__(
        self, target: RewardTarget, *, workers: int = 1, timeout_s: float = 15.0, start_timeout_s: float = 60.0
    ) -> None:
        """Start nothing yet."""
        self.target = target
        self._workers = workers
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._pool: Any = None  # Any: pebble is not typed
        self._waiting: deque[_Asked] = deque()
        self._trips: dict[asyncio.Task[None], Sequence[_Asked]] = {}
        self._usual_s = timeout_s

    async def start(self) -> None:
        """Start the processes and resolve the function, so that its errors come before training does.

        Raises:
            ConfigError, PluginError: the name, an option or an imported file is wrong.
            RewardFailed: the function cannot be built, or not within the start timeout.
        """
        if self._pool is not None:
            return
        self._pool = ProcessPool(
            max_workers=self._workers,
            context=multiprocessing.get_context("spawn"),
            initializer=child.start,
            initargs=(self.target, os.getpid()),
        )
        try:
            error = await self._call(child.check, (), self._start_timeout_s)
        except (TimeoutError, ProcessExpired, RuntimeError) as exc:
            await self.close()
            raise errors.RewardFailed(
                f"the process of reward {self.target.name!r} did not start",
                why=f"{type(exc).__name__}: {exc}",
                fix="build it alone in a Python shell; importing it must not hang or exit",
            ) from exc
        except BaseException:
            await self.close()
            raise
        if error is not None:
            await self.close()
            kind, what, why, fix = error
            raise getattr(errors, kind)(what, why=why, fix=fix)

    async def score(self, value: RewardInput) -> RewardResult:
        """Score one completion. A bad function never raises here: the result says how it ended."""
        assert self._pool is not None, "start runs first"
        asked = _Asked(value, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._send()
        return await asked.answer

    async def close(self) -> None:
        """Kill the processes and wait until they are gone; calls in flight are cancelled. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.stop()
        for trip in self._trips:
            trip.cancel()
        await asyncio.gather(*self._trips, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        await asyncio.to_thread(pool.join)

    def _send(self) -> None:
        """Send what waits, as long as a process is free."""
        while self._waiting and len(self._trips) < self._workers:
            share = -(-len(self._waiting) // self._workers)
            size = max(1, min(share, MAX_TRIP, int(TRIP_S / self._usual_s)))
            asked = [self._waiting.popleft() for _ in range(size)]
            asked = [one for one in asked if not one.answer.done()]
            if asked:
                trip = asyncio.create_task(self._trip(asked))
                self._trips[trip] = asked
                trip.add_done_callback(self._back)

    def _back(self, trip: asyncio.Task[None]) -> None:
        for one in self._trips.pop(trip):
            one.answer.cancel()  # nothing to do for who was answered
        if self._pool is not None:
            self._send()

    async def _trip(self, asked: Sequence[_Asked]) -> None:
        """Answer everyone on a trip, whatever happens to it."""
        try:
            results = await self._score_together([one.value for one in asked])
            for one, result in zip(asked, results, strict=True):
                if not one.answer.done():
                    one.answer.set_result(result)
        except Exception as exc:  # for example a row that cannot travel: the episode's error, not the pool's
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(exc)

    async def _score_together(self, values: Sequence[RewardInput]) -> list[RewardResult]:
        began = time.perf_counter()
        try:
            results: list[RewardResult] = await self._call(child.score_all, (values,), self._timeout_s)
        except (TimeoutError, ProcessExpired) as exc:
            self._usual_s = self._timeout_s
            if len(values) > 1:
                return [result for value in values for result in await self._score_together([value])]
            return [self._ended_badly(exc, time.perf_counter() - began)]
        for result in results:
            self._usual_s = max(0.9 * self._usual_s + 0.1 * result.seconds, 1e-6)
        return results

    async def _call(self, function: Any, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Run a function in the pool. Any: pebble is not typed."""
        return await asyncio.wrap_future(self._pool.schedule(function, args=arguments, timeout=timeout_s))

    def _ended_badly(self, exc: Exception, seconds: float) -> RewardResult:
        if isinstance(exc, ProcessExpired):
            status, detail = RewardStatus.CRASHED, f"its process ended with exit code {exc.exitcode}"
        else:
            status, detail = RewardStatus.TIMEOUT, f"no answer within {self._timeout_s:g} s; its process was killed"
        return RewardResult(value=None, status=status, detail=f"reward {self.target.name!r}: {detail}", seconds=seconds)


def make_pool(
    name: str, options: Mapping[str, Any], *, imports: Sequence[str], workers: int, timeout_s: float
) -> RewardPool:
    """Return the pool of a reward function, not started: the extension `rewards`. Any: the reward's own options."""
    target = RewardTarget(name=name, options=options, imports=tuple(imports))
    return RewardPool(target, workers=workers, timeout_s=timeout_s)
