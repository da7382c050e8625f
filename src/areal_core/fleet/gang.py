"""A replica over several hosts, seen as one worker: its parts are started, asked and lost together.

Knows: which calls go to every part, which to the leader, and in which order.
Does not know: what a part computes (engines do), where it runs (schedulers do), or the other replicas.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any

import attrs

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import GenerationFailed, WeightSyncError, WorkerDied
from areal_core.contract.inference import InferenceSpec, ReplicaPart
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt
from areal_core.fleet.streaming import Results, most_telling
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.weights.coverage import check

LOOK_S = 1.0
"""Between two looks at the parts of a replica whose leader starts."""
_LOOK_TIMEOUT_S = 30.0
_EVERYWHERE = ("abort_weights", "close")


class Gang:
    """Satisfies `Worker`. The first part leads: it has the replica's id and takes its requests.

    What one part cannot do fails for all of them with an error that names it, WorkerDied where it is lost.
    """

    def __init__(self, parts: Sequence[Worker], *, clock: Clock | None = None) -> None:
        """Take the workers of one job, in rank order; they are not started yet."""
        self.parts = tuple(parts)
        self.id, self.host = self.parts[0].id, self.parts[0].host
        self._clock = clock or SystemClock()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call the leader, or all parts where it concerns every host. Any: as in the contract."""
        leader, *others = self.parts
        if method == "start":
            return await self._start(*args, timeout_s=timeout_s)
        if method == "receive_weights":
            calls = [part.call(method, *args, timeout_s=timeout_s) for part in self.parts]
            answer = as_one(self.parts, await _until_one_fails(calls))
            if isinstance(answer, BaseException):
                raise answer
            return answer
        if method == "commit_weights":  # the leader flips the replica, the others let the old version go
            await leader.call(method, *args, timeout_s=timeout_s)
            await gather_or_cancel([part.call(method, *args, timeout_s=timeout_s) for part in others])
            return None
        if method in _EVERYWHERE:
            await gather_or_cancel([part.call(method, *args, timeout_s=timeout_s) for part in self.parts])
            return None
        if method == "status":
            return (await self._statuses(timeout_s))[0]
        try:
            return await leader.call(method, *args, timeout_s=timeout_s)
        except GenerationFailed:
            await self._statuses(_LOOK_TIMEOUT_S)  # it may be the loss of a part that made it fail
            raise

    async def _start(self, spec: InferenceSpec, *, timeout_s: float) -> EngineInfo:
        leader, *others = self.parts
        # The leader chooses in its own process: a port that is free here may be taken there.
        meeting = str(await leader.call("rendezvous", leader.host, timeout_s=timeout_s))
        key, count = secrets.token_urlsafe(32), len(self.parts)
        ranks = [
            ReplicaPart(rank=rank, num_hosts=count, host=part.host, leader=meeting, key=key)
            for rank, part in enumerate(self.parts)
        ]
        starts = [
            asyncio.ensure_future(part.call("start", attrs.evolve(spec, part=rank), timeout_s=timeout_s))
            for part, rank in zip(self.parts, ranks, strict=True)
        ]
        all_started = asyncio.ensure_future(gather_or_cancel(starts))
        watch = asyncio.ensure_future(self._watch(others, starts[1:]))
        try:
            await asyncio.wait({all_started, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            info: EngineInfo = all_started.result()[0]
            return info
        finally:
            all_started.cancel()
            watch.cancel()
            await asyncio.gather(all_started, watch, return_exceptions=True)

    async def _watch(self, others: Sequence[Worker], starts: Sequence[asyncio.Future[Any]]) -> None:
        """Raise what becomes of a part that has started; its leader would wait for it in vain. Any: `EngineInfo`."""
        while True:
            await self._clock.sleep(LOOK_S)
            for part, start in zip(others, starts, strict=True):
                if start.done():
                    await self._look_at(part)

    async def _look_at(self, part: Worker) -> None:
        try:
            await part.call("status", timeout_s=_LOOK_TIMEOUT_S)
        except GenerationFailed as error:
            raise self._lost(part, error) from error

    async def _statuses(self, timeout_s: float, *, again: bool = True) -> list[Any]:
        """Return the status of every part, or raise who is lost, the leader last. Any: `EngineStatus`."""
        calls = [part.call("status", timeout_s=timeout_s) for part in self.parts]
        answers = list(zip(self.parts, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        errors = [error for _, error in answers if isinstance(error, BaseException)]
        died = [error for error in errors if isinstance(error, WorkerDied)]
        lost = [self._lost(part, error) for part, error in reversed(answers) if isinstance(error, GenerationFailed)]
        if again and not died and isinstance(answers[0][1], GenerationFailed):
            return await self._statuses(timeout_s, again=False)  # whom the leader misses may have answered before
        for error in (*died, *lost, *errors):
            raise error
        return [status for _, status in answers]

    def _lost(self, part: Worker, error: GenerationFailed) -> WorkerDied:
        return WorkerDied(
            f"{part.id} lost its part of replica {self.id}, which is on {len(self.parts)} hosts",
            why="\n".join(line for line in (error.what, error.why) if line),
            fix="read its log",
        )


def parts_of(worker: Worker) -> tuple[Worker, ...]:
    """Return the worker processes a replica consists of, its leader first."""
    return worker.parts if isinstance(worker, Gang) else (worker,)


def as_one(parts: Sequence[Worker], results: Results) -> object:
    """Return what a replica answers to `receive_weights`: its leader's receipt if all parts hold the same bytes.

    An exception is returned, not raised: the likeliest cause, naming the part where it is not the leader's.
    """
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        return most_telling(errors)
    first, *others = results
    if not isinstance(first, Receipt):
        return first  # whoever asked says what is wrong with it
    try:
        for part, result in zip(parts[1:], others, strict=True):
            check(first, result, part.id)
    except WeightSyncError as error:
        return error
    return first


async def _until_one_fails(calls: Sequence[Coroutine[Any, Any, Any]]) -> Results:
    """Await all at once; when one fails cancel the others, which may wait for it. Any: a worker's answers."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return results
