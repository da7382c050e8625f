"""What adds up over a run can be divided by the time it was added up in."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from areal_core.contract.inference import EngineStatus
from areal_core.fleet.meter import FleetMeter
from areal_core.loop.step_record import Count, Totals


class HalfBusy:
    """A fleet of one that computes every other second's half, ten tokens a second, by the clock of the test."""

    def __init__(self) -> None:
        self.time = 0.0

    async def status(self) -> dict[str, EngineStatus]:
        """Return what it has done so far."""
        facts: dict[str, Any] = {"tokens_generated": int(10 * self.time), "busy_s": self.time / 2}  # Any: as the fields
        return {"a": EngineStatus(version=0, num_running=0, num_waiting=0, paused=False, **facts)}


def test_shares_and_rates_of_the_fleet_are_over_the_time_it_was_read_in() -> None:
    """Steps of 0.25 s beside readings once a second: idle 50% and 10 tokens/s wherever a reading lies between.

    Over the time of the steps the same counts give 0% or 100% idle, and 0 or 40 tokens/s.
    """
    fleet = HalfBusy()
    learner: Any = SimpleNamespace(actor=SimpleNamespace(busy_s=0.0))  # Any: the one number that is read

    async def steps() -> list[Totals]:
        meter = FleetMeter(fleet, now=lambda: fleet.time)  # type: ignore[arg-type]
        await meter.read()
        count, found = Count(Totals(), learner, meter, now=lambda: fleet.time), []
        for step in range(1, 41):
            fleet.time = step * 0.25
            if step % 4 == 0:
                await meter.read()
            found.append(count.totals())
        return found

    totals = asyncio.run(steps())
    read = [(a, b) for a, b in pairwise(totals) if b.infer_wall_s > a.infer_wall_s]

    assert len(read) == 10
    for earlier, later in read:
        seconds = later.infer_wall_s - earlier.infer_wall_s
        assert (later.infer_busy_s - earlier.infer_busy_s) / seconds == pytest.approx(0.5)
        assert (later.tokens_generated - earlier.tokens_generated) / seconds == pytest.approx(10.0)


def test_the_sums_of_a_resumed_run_go_on() -> None:
    """Counts and the time they were counted in alike: a share of a run is not a share of what came after a resume."""
    fleet = HalfBusy()
    learner: Any = SimpleNamespace(actor=SimpleNamespace(busy_s=0.0))  # Any: the one number that is read

    async def resumed() -> Totals:
        meter = FleetMeter(fleet, now=lambda: fleet.time)  # type: ignore[arg-type]
        await meter.read()
        before = Totals(seconds=8.0, tokens_generated=80, train_busy_s=6.0, infer_busy_s=4.0, infer_wall_s=8.0)
        count = Count(before, learner, meter, now=lambda: fleet.time)
        fleet.time, learner.actor.busy_s = 2.0, 1.5
        await meter.read()
        return count.totals()

    totals = asyncio.run(resumed())

    assert (totals.seconds, totals.tokens_generated, totals.train_busy_s) == (10.0, 100, 7.5)
    assert (totals.infer_busy_s, totals.infer_wall_s) == (5.0, 10.0)
