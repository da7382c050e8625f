"""The fleet's totals: read beside the loop, never going back, a lost replica told once."""

from __future__ import annotations

import asyncio

from areal_core.contract.errors import WorkerDied
from areal_core.contract.inference import EngineStatus
from areal_core.loop.meter import FleetMeter


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
    meter = FleetMeter(Pool(a=_status(10, 1.0), b=_status(30, 3.0)), lambda *_: None)

    asyncio.run(meter.read())

    assert (meter.tokens_generated, meter.busy_s) == (40, 2.0)


def test_a_lost_replica_is_told_once_and_totals_never_go_back() -> None:
    """It stays in the answers with the error that took it out."""
    told: list[str] = []
    pool = Pool(a=_status(10, 1.0), b=_status(30, 3.0))
    meter = FleetMeter(pool, lambda worker, error: told.append(f"{worker}: {error}"))

    async def readings() -> None:
        await meter.read()
        pool.answers["b"] = WorkerDied("worker b was killed")
        await meter.read()
        await meter.read()

    asyncio.run(readings())

    assert told == ["b: worker b was killed [AREAL-E401]"]
    assert meter.tokens_generated == 40
