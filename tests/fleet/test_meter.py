"""The fleet's totals: read beside the loop, never going back while replicas come and go."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve

from areal_core.contract.errors import WorkerDied, WorkerTimeout
from areal_core.contract.inference import KV_USED_SHARE, NUM_PREEMPTED, EngineStatus
from areal_core.fleet.meter import FleetMeter


class Pool:
    """Replicas whose answers are set by the test."""

    def __init__(self, **answers: EngineStatus | BaseException) -> None:
        self.answers: dict[str, EngineStatus | BaseException] = answers

    async def status(self) -> dict[str, EngineStatus | BaseException]:
        """Return the answers set."""
        return self.answers


def _status(tokens: int, busy_s: float) -> EngineStatus:
    return EngineStatus(version=0, num_running=0, num_waiting=0, paused=False, tokens_generated=tokens, busy_s=busy_s)


def test_tokens_are_added_and_busy_time_is_a_mean_over_replicas() -> None:
    """So that busy over wall time is a share."""
    meter = FleetMeter(Pool(a=_status(10, 1.0), b=_status(30, 3.0)))  # type: ignore[arg-type]

    asyncio.run(meter.read())

    assert (meter.tokens_generated, meter.busy_s) == (40, 2.0)


def test_totals_go_on_while_replicas_come_and_go() -> None:
    """What a lost replica did stays counted, one that joins adds what it does, and time is shared by those there."""
    pool = Pool(a=_status(10, 1.0), b=_status(30, 3.0))
    meter = FleetMeter(pool)  # type: ignore[arg-type]

    async def readings() -> None:
        await meter.read()
        pool.answers["b"] = WorkerDied("worker b was killed")
        pool.answers["c"] = _status(5, 0.5)
        await meter.read()
        del pool.answers["b"]
        pool.answers |= {"a": _status(20, 2.0), "c": _status(7, 0.5)}
        await meter.read()

    asyncio.run(readings())

    assert (meter.tokens_generated, meter.busy_s) == (40 + 5 + 12, 2.0 + 0.25 + 0.5)


def test_what_a_replica_did_while_it_did_not_answer_is_counted_once() -> None:
    """A look that comes during a long prefill says nothing; the next one counts on from the last answer."""
    pool = Pool(a=_status(10, 1.0), b=_status(30, 3.0))
    meter = FleetMeter(pool)  # type: ignore[arg-type]

    async def readings() -> None:
        await meter.read()
        pool.answers["b"] = WorkerTimeout("worker b did not answer")
        await meter.read()
        pool.answers["b"] = _status(50, 5.0)
        await meter.read()

    asyncio.run(readings())

    assert (meter.tokens_generated, meter.busy_s) == (60, 3.0)


def test_metrics_every_backend_names_alike_are_means_over_the_replicas_that_tell_them() -> None:
    """A replica that cannot tell, or does not answer, counts for nothing; an engine's own metrics stay its own."""
    told = [{KV_USED_SHARE: 0.2, NUM_PREEMPTED: 3.0, "steps": 7.0}, {KV_USED_SHARE: 0.6}, {}]
    a, b, c = (evolve(_status(1, 1.0), metrics=metrics) for metrics in told)
    pool = Pool(a=a, b=b, c=c, d=WorkerDied("worker d was killed"))
    meter = FleetMeter(pool)  # type: ignore[arg-type]

    asyncio.run(meter.read())

    assert meter.metrics == {KV_USED_SHARE: pytest.approx(0.4), NUM_PREEMPTED: 3.0}


def test_metrics_stay_while_nobody_answers() -> None:
    """A fleet that restarts shows what it last told."""
    pool = Pool(a=evolve(_status(1, 1.0), metrics={KV_USED_SHARE: 0.5}))
    meter = FleetMeter(pool)  # type: ignore[arg-type]

    async def readings() -> None:
        await meter.read()
        pool.answers["a"] = WorkerDied("worker a was killed")
        await meter.read()

    asyncio.run(readings())

    assert meter.metrics == {KV_USED_SHARE: 0.5}


def test_totals_know_when_they_were_true() -> None:
    """The moment of the last answer, not of a question that nobody answered."""
    pool, times = Pool(a=_status(10, 1.0)), iter([0.0, 1.0, 3.0])
    meter = FleetMeter(pool, now=lambda: next(times))  # type: ignore[arg-type]

    async def readings() -> None:
        await meter.read()
        pool.answers["a"] = WorkerDied("worker a was killed")
        await meter.read()

    asyncio.run(readings())

    assert (meter.read_at, next(times)) == (1.0, 3.0)
