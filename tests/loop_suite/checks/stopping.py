"""Stopping: a hold admits nothing more, and what was cancelled is over, also on the replicas.

Knows: what may still run after a hold, a close, a rejection.
Does not know: who waits for a batch meanwhile; `failures` looks at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.benches.rollouts import greedy

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.errors import EpisodeFailed, GenerationFailed
from areal_core.contract.inference import PauseMode
from areal_core.contract.trajectory import from_generation

if TYPE_CHECKING:
    from tests.benches.rollouts import RolloutBench

    from areal_core.contract.inference import Generation, GenerationRequest
    from areal_core.contract.workflow import Session

    from ..bench import LoopBench

_TURNS = 25
"""Turns of the event loop that tidying up takes."""


@asynccontextmanager
async def _stopping(bench: LoopBench, **options: Any) -> AsyncIterator[RolloutBench]:
    """Yield a started rollout side, and end whatever it leaves running. Any: as for `rollouts`."""
    before = asyncio.all_tasks()
    try:
        async with bench.rollouts(**options) as side:
            yield side
    finally:
        for _ in range(3):
            left = asyncio.all_tasks() - before
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)


class _Tidy:
    """A workflow that tidies up for a few turns of the loop when it is cancelled."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        """Generate. Any: as in the contract."""
        self.begun += 1
        try:
            return from_generation(data["input_ids"], await engine.generate(data["input_ids"]), 1.0)
        finally:
            for _ in range(data.get("turns", _TURNS)):
                await asyncio.sleep(0)
            self.ended += 1


@check("loop.close.waits", level=Level.LOOP, law=10, spec="index#law-by-law")
async def close_waits(bench: LoopBench) -> None:
    """When close returns no episode runs any more: what tidies up when it is cancelled has done so."""
    # Evaluations take longer to tidy up: who waits for the rollouts only has not waited for them too.
    rows = [{"input_ids": [5, 4], "number": 0, "turns": 4 * _TURNS}] * 3
    for what in ("rollouts", "rollouts and an evaluation", "rollouts after a hold", "a second close"):
        workflow = _Tidy()
        async with _stopping(bench, prompts=2, group=2, workflow=workflow, length=lambda _request: 1000) as side:
            before = asyncio.all_tasks()
            asked: list[asyncio.Task[Any]] = []
            if "evaluation" in what:
                asked.append(asyncio.ensure_future(side.executor.evaluate(rows, greedy())))
            await side.clock.settle()
            if "hold" in what:
                side.executor.hold()
            expect(workflow.begun > workflow.ended, f"{what}: no episode runs, so a close shows nothing")
            if "second" in what:
                # The first one is cut off by whoever closes, so the second one has to wait in its place.
                first = asyncio.ensure_future(side.executor.close())
                await asyncio.sleep(0)
                first.cancel()
                await asyncio.wait((first,))
            await bench.soon(side.executor.close(), f"closing {what}")
            left = workflow.begun - workflow.ended
            running = [task.get_name() for task in before if task.get_name().startswith("train/") and not task.done()]
            for call in asked:
                call.cancel()
            await side.clock.settle()
            if asked:
                await asyncio.wait(asked)
        expect(left == 0, f"close of {what} returned while {left} of {workflow.begun} episodes were tidying up")
        expect(not running, f"close of {what} returned while tasks {running} ran")


@check("loop.close.after_failure", level=Level.LOOP, law=10, spec="index#law-by-law")
async def close_after_failure(bench: LoopBench) -> None:
    """A run that ended with an error is closed as any other: close waits for the episodes the error cancelled."""

    class Failing(_Tidy):
        async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:  # Any: as in the contract
            if data["number"] == 1:
                raise RuntimeError("the verifier is on fire")
            return await super().arun_episode(engine, data)

    workflow = Failing()
    async with _stopping(bench, prompts=2, group=2, workflow=workflow, length=lambda _request: 1000) as side:
        try:
            await side.executor.next_batch()
        except EpisodeFailed:
            pass
        else:
            expect(False, "a batch was handed over although a group failed and none may")
        await bench.soon(side.executor.close(), "closing a run that failed")
        left = workflow.begun - workflow.ended
        expect(left == 0, f"close returned while {left} of {workflow.begun} episodes were tidying up")


@check("loop.hold.admits_nothing", level=Level.LOOP, law=9, spec="index#law-by-law")
async def hold_admits_nothing(bench: LoopBench) -> None:
    """After hold no group begins: not in place of one rejected, failed or handed over, nor at a new version."""

    def none(_row: object, _generation: object) -> float | None:
        return None

    def raising(_row: object, _generation: object) -> float:
        raise RuntimeError("the verifier is on fire")

    def some(row: Mapping[str, Any], _generation: object) -> float | None:
        return None if row["number"] % 2 else 1.0

    def refuses(_episodes: object) -> bool:
        return False

    cases: Mapping[str, dict[str, Any]] = {
        "rejects every group": {"judge": none},
        "refuses every finished group": {"accept": refuses},
        "fails every group": {"judge": raising, "max_failed_share": 0.9},
        "rejects every other group": {"judge": some},
        "finishes every group": {},
    }
    for what, options in cases.items():
        async with _stopping(
            bench, prompts=2, group=2, staleness=2, max_concurrent=3, length=lambda _request: 3, **options
        ) as side:
            await side.clock.settle()
            side.executor.hold()
            admitted = side.executor.stats().admitted
            expect(admitted > 0, "nothing was admitted before the hold")
            asked = _asked(side)
            await side.clock.advance(40.0)
            if side.executor.stats().buffered >= 2:
                await side.executor.next_batch()
                await side.clock.advance(40.0)
                side.executor.set_version(1)
            await side.clock.advance(40.0)
            stats = side.executor.stats()
            more = stats.admitted - admitted
            expect(more == 0, f"a run on hold that {what} began {more} groups after its {admitted}")
            expect(
                _asked(side) == asked, f"a run on hold that {what} asked for {_asked(side) - asked} generations more"
            )
            expect(stats.running == 0, f"{stats.running} groups of a run on hold never came to an end")


@check("loop.cancel.request", level=Level.LOOP, law=10, spec="index#law-by-law")
async def cancel_request(bench: LoopBench) -> None:
    """A cancelled episode's request is cancelled on its replica too, wherever it was: none goes on for nobody."""
    for what in ("first call", "call after an interruption", "call after a failover", "paused replica"):
        async with _stopping(bench, num_replicas=2, prompts=2, group=2, retries=2, length=lambda _request: 900) as side:
            if "failover" in what:
                side.workers[0].fail(GenerationFailed("a dropped connection"), times=1)
            await side.clock.advance(3.0)
            if what in ("call after an interruption", "paused replica"):
                for engine in side.engines:
                    await engine.pause(PauseMode.ABORT if "interruption" in what else PauseMode.KEEP)
            if "interruption" in what:
                for engine in side.engines:
                    await engine.resume()
                await side.clock.advance(3.0)
            running = [(await engine.status()).num_running for engine in side.engines]
            expect(sum(running) > 0, f"{what}: no request runs, so cancelling shows nothing")
            await side.executor.close()
            await _nobody_runs(side, f"episodes were cancelled during their {what}")


@check("loop.cancel.siblings", level=Level.LOOP, law=10, spec="index#law-by-law")
async def cancel_siblings(bench: LoopBench) -> None:
    """A rejected or failed member's siblings are cancelled with their requests: a group nobody wants costs nothing."""

    def rejects(_row: object, _generation: Generation) -> float | None:
        return None

    def raising(_row: object, _generation: Generation) -> float:
        raise RuntimeError("the verifier is on fire")

    for what, judge in (("rejected", rejects), ("failed", raising)):
        async with _stopping(
            bench, prompts=2, group=3, judge=judge, length=_first_ends_at_once(), max_failed_share=0.9
        ) as side:
            await side.clock.settle()
            side.executor.hold()
            await side.clock.advance(1.0)
            stats = side.executor.stats()
            expect(stats.running == 0, f"{stats.running} groups still run whose first member was {what}")
            await _nobody_runs(side, f"a member of each group was {what}")


def _first_ends_at_once() -> Any:  # Any: a Length
    """Return a length of one token for the first request of every prompt, and of very many for the others."""
    seen: set[tuple[int, ...]] = set()

    def length(request: GenerationRequest) -> int:
        first = request.input_ids not in seen
        seen.add(request.input_ids)
        return 1 if first else 1000

    return length


async def _nobody_runs(side: RolloutBench, when: str) -> None:
    """Expect every replica at rest, and to stay so."""
    await side.clock.settle()
    statuses = [await engine.status() for engine in side.engines]
    running = [status.num_running for status in statuses]
    expect(sum(running) == 0, f"{when}, and the replicas still run {running} requests")
    flight = side.pool.in_flight
    expect(flight == 0, f"{when}, and the pool counts {flight} requests in flight")
    asked = _asked(side)
    await side.clock.advance(20.0)
    made = [
        (await e.status()).tokens_generated - s.tokens_generated for e, s in zip(side.engines, statuses, strict=True)
    ]
    expect(sum(made) == 0, f"{when}, and the replicas generated {made} tokens more")
    expect(_asked(side) == asked, f"{when}, and {_asked(side) - asked} requests came after that")


def _asked(side: RolloutBench) -> int:
    """Return how many requests the replicas were given."""
    return sum(len(engine.requests) for engine in side.engines)
