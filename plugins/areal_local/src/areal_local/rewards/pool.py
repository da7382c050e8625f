"""Rewards, each in a process that can be killed.

Knows: how completions are shared among processes, when one is replaced, and every way a call can end.
Does not know: what the function computes (`child`), or how one process is asked (`process`).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from attrs import define, frozen

from areal_core.contract import errors
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_local.rewards import messages
from areal_local.rewards.calling import Batching
from areal_local.rewards.child import RewardTarget
from areal_local.rewards.process import ProcessEnded, RewardProcess

MAX_TRIP = 64
"""Completions that travel to a process at once, at most."""
TRIP_S = 0.005
"""Work in one trip, as far as the rewards before tell: what takes longer than this travels alone."""

MAX_STARTS = 5
"""How often a process is started that somebody kills before it has begun."""


@frozen(eq=False)
class _Asked:
    value: RewardInput
    answer: asyncio.Future[RewardResult]
    since: float


class _NoFunction(Exception):
    """The function cannot be built: error class, what, why, fix."""


@define
class _Place:
    """Where one process works at a time. It starts when it is needed, and another after its end."""

    target: RewardTarget
    start_timeout_s: float
    process: RewardProcess | None = None
    batching: Batching = Batching()
    """What the function says of itself, once it was begun."""

    async def begin(self) -> None:
        """Start a process and have it resolve the function; another one, if somebody killed it meanwhile.

        Raises:
            _NoFunction: there is none.
            TimeoutError, ProcessEnded: it did not get so far.
        """
        for left in reversed(range(MAX_STARTS)):
            try:
                await self._begin()
            except ProcessEnded as exc:
                if not left or not _is_killed(exc):
                    raise
            else:
                return

    async def _begin(self) -> None:
        async with self._lasting():
            self.process = await RewardProcess.begin()
            target = (self.target.name, dict(self.target.options), self.target.imports)
            error, size, wait_s = await self.process.ask(messages.encode(target), self.start_timeout_s)
            if error is not None:
                raise _NoFunction(*error)
            self.batching = Batching(size=size, wait_s=wait_s)

    async def score(self, values: Sequence[RewardInput], timeout_s: float) -> list[RewardResult]:
        """Score completions, all within the time.

        Raises:
            TimeoutError, ProcessEnded: the process is gone.
            RewardFailed: it was gone, and another one did not start.
            CodecError: a row cannot travel.
        """
        message = messages.encode_completions(values)
        if self.process is None:
            try:
                await self.begin()
            except (_NoFunction, TimeoutError, ProcessEnded) as exc:
                what = f"the process of reward {self.target.name!r} did not start again"
                raise errors.RewardFailed(what, why=str(exc) or "it took too long") from exc
        async with self._lasting():
            assert self.process is not None
            results: list[RewardResult] = await self.process.ask(message, timeout_s)
            return results

    async def close(self) -> None:
        """End the process. Idempotent."""
        process, self.process = self.process, None
        if process is not None:
            await process.end()

    @asynccontextmanager
    async def _lasting(self) -> AsyncIterator[None]:
        """End the process when a call of it is broken off: what it answers later belongs to nobody."""
        try:
            yield
        except BaseException:
            await self.close()
            raise


class RewardPool:
    """Score completions in `workers` processes, each call within `timeout_s` seconds.

    A call that hangs has its process killed and another one started; the others are not disturbed.
    A completion whose process was killed by somebody else (for want of memory, say) is scored once more; a process
    killed while it starts is started again.
    Quick rewards travel several at a time, and a function that takes lists is given up to its batch size of what waits
    in one call, a batch; if one of them then hangs or ends the process, all of that trip are scored again, each alone,
    so the function may see a completion twice.
    """

    def __init__(
        self,
        target: RewardTarget,
        *,
        workers: int = 1,
        timeout_s: float = 15.0,
        start_timeout_s: float = 60.0,
        tell: Callable[..., None] | None = None,
    ) -> None:
        """Start nothing yet. `tell` takes an event about every process that was killed by somebody else."""
        self.target = target
        self._timeout_s = timeout_s
        self._tell = tell
        self._places = [_Place(target, start_timeout_s) for _ in range(workers)]
        self._free: list[_Place] = []
        self._waiting: deque[_Asked] = deque()
        self._trips: dict[asyncio.Task[None], Sequence[_Asked]] = {}
        self._usual_s = timeout_s
        self._waking: asyncio.TimerHandle | None = None
        self._turn_ends = False

    async def start(self) -> None:
        """Start a process and resolve the function, so that its errors come before training does.

        The other processes start when there is work for them.

        Raises:
            ConfigError, PluginError: the name, an option or an imported file is wrong.
            RewardFailed: the function cannot be built, or not within the start timeout.
        """
        if self._free or self._trips:
            return
        try:
            await self._places[0].begin()
        except _NoFunction as error:
            kind, what, why, fix = error.args
            raise getattr(errors, kind)(what, why=why, fix=fix) from None
        except (TimeoutError, ProcessEnded) as exc:
            raise errors.RewardFailed(
                f"the process of reward {self.target.name!r} did not start",
                why=str(exc) or "it took too long",
                fix="build it alone in a Python shell; importing it must not hang or exit",
            ) from exc
        self._free = self._places[::-1]

    async def score(self, value: RewardInput) -> RewardResult:
        """Score one completion. A bad function never raises here: the result says how it ended."""
        assert self._free or self._trips, "start runs first"
        loop = asyncio.get_running_loop()
        asked = _Asked(value, loop.create_future(), loop.time())
        self._waiting.append(asked)
        if not self._turn_ends:  # once for all completions of a turn of the loop: they travel together
            self._turn_ends = True
            loop.call_soon(self._end_turn)
        return await asked.answer

    async def close(self) -> None:
        """Kill the processes, with all they started, and wait until they are gone. Idempotent.

        Calls in flight are cancelled.
        """
        if self._waking is not None:
            self._waking.cancel()
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        for trip in self._trips:
            trip.cancel()
        await asyncio.gather(*self._trips, return_exceptions=True)
        await asyncio.gather(*(place.close() for place in self._places))

    def _send(self) -> None:
        """Send what waits, as long as a process is free."""
        while self._waiting and self._free and self._is_due():
            asked = [self._waiting.popleft() for _ in range(self._trip_size())]
            asked = [one for one in asked if not one.answer.done()]
            if asked:
                place = self._free.pop()
                trip = asyncio.create_task(self._trip(asked, place))
                self._trips[trip] = asked
                trip.add_done_callback(partial(self._back, place))

    def _end_turn(self) -> None:
        self._turn_ends = False
        self._send()

    def _is_due(self) -> bool:
        """Tell whether a trip can go; one that is not full is looked at again when its first has waited enough."""
        batching, loop = self._places[0].batching, asyncio.get_running_loop()
        left = self._waiting[0].since + batching.wait_s - loop.time()
        if len(self._waiting) >= batching.size or left <= 0:
            return True
        if self._waking is None:
            self._waking = loop.call_later(left, self._wake)
        return False

    def _wake(self) -> None:
        self._waking = None
        self._send()

    def _trip_size(self) -> int:
        if (size := self._places[0].batching.size) > 1:
            return min(size, len(self._waiting))
        share = -(-len(self._waiting) // len(self._places))
        return max(1, min(share, MAX_TRIP, int(TRIP_S / self._usual_s)))

    def _back(self, place: _Place, trip: asyncio.Task[None]) -> None:
        self._free.append(place)
        for one in self._trips.pop(trip):
            one.answer.cancel()  # nothing to do for who was answered
        self._send()

    async def _trip(self, asked: Sequence[_Asked], place: _Place) -> None:
        """Answer everyone on a trip, whatever happens to it."""
        try:
            results = await self._score_together([one.value for one in asked], place)
            for one, result in zip(asked, results, strict=True):
                if not one.answer.done():
                    one.answer.set_result(result)
        except Exception as exc:  # for example a row that cannot travel: the episode's error, not the pool's
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(exc)

    async def _score_together(
        self, values: Sequence[RewardInput], place: _Place, *, again: bool = False
    ) -> list[RewardResult]:
        began = time.perf_counter()
        try:
            results = await place.score(values, self._timeout_s)
        except (TimeoutError, ProcessEnded) as exc:
            self._usual_s = self._timeout_s
            killed = _is_killed(exc)
            if killed and self._tell is not None:
                self._tell("reward_process_replaced", reward=self.target.name, why=str(exc), completions=len(values))
            if len(values) == 1 and (again or not killed):
                return [self._ended_badly(exc, time.perf_counter() - began)]
            alone = [await self._score_together([value], place, again=len(values) == 1) for value in values]
            return [result for (result,) in alone]
        for result in results:
            self._usual_s = max(0.9 * self._usual_s + 0.1 * result.seconds, 1e-6)
        return results

    def _ended_badly(self, exc: Exception, seconds: float) -> RewardResult:
        if isinstance(exc, ProcessEnded):
            status, detail = RewardStatus.CRASHED, str(exc)
        else:
            status, detail = RewardStatus.TIMEOUT, f"no answer within {self._timeout_s:g} s; its process was killed"
        return RewardResult(value=None, status=status, detail=f"reward {self.target.name!r}: {detail}", seconds=seconds)


def _is_killed(exc: Exception) -> bool:
    """Tell whether somebody else ended the process, for want of memory, say."""
    return isinstance(exc, ProcessEnded) and exc.code == -signal.SIGKILL


def make_pool(
    name: str,
    options: Mapping[str, Any],
    *,
    imports: Sequence[str],
    workers: int,
    timeout_s: float,
    tell: Callable[..., None] | None = None,
) -> RewardPool:
    """Return the pool of a reward function, not started: the extension `rewards`. Any: the reward's own options."""
    target = RewardTarget(name=name, options=options, imports=tuple(imports))
    return RewardPool(target, workers=workers, timeout_s=timeout_s, tell=tell)
