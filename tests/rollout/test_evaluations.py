"""Evaluations beside the rollouts: what they sample, count, leave out and tolerate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from attrs import evolve
from tests.benches.rollouts import SMALL, RolloutBench, fails_on, greedy

from areal_core.contract.errors import (
    EpisodeFailed,
    RewardFailed,
)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_evaluation_runs_beside_the_rollouts_and_outside_the_gate() -> None:
    """One episode per row, in order, with the given parameters; the gate's counts do not change."""

    async def test() -> None:
        bench = RolloutBench(SMALL)
        rows = [{"input_ids": [7, number], "number": number} for number in range(20)]
        episodes = await bench.drive(bench.executor.evaluate(rows, greedy()))
        again = await bench.drive(bench.executor.evaluate(rows, greedy()))

        assert [episode.task_id for episode in episodes] == [f"eval/{number}" for number in range(20)]
        assert [e.trajectories[0].input_ids[1] for e in episodes] == list(range(20))
        assert [e.trajectories[0].input_ids.tolist() for e in again] == [
            e.trajectories[0].input_ids.tolist() for e in episodes
        ]
        sent = [r.sampling for r in bench.engines[0].requests if str(r.request_id).startswith("eval")]
        assert {sampling.temperature for sampling in sent} == {0.0}
        stats = bench.executor.stats()
        assert (stats.evaluated, stats.consumed, stats.admitted) == (40, 0, 4)
        await bench.close()

    run(test)


def test_a_failing_evaluation_tells_and_leaves_nothing_behind() -> None:
    """An error in one row comes out as EpisodeFailed of that row; the rollouts go on."""

    async def test() -> None:
        bench = RolloutBench(SMALL, judge=fails_on(99, RewardFailed("no number")))
        rows = [{"input_ids": [7], "number": number} for number in (97, 98, 99)]
        with pytest.raises(EpisodeFailed, match="eval/2"):
            await bench.drive(bench.executor.evaluate(rows, greedy()))

        assert len(await bench.step()) == 2
        await bench.close()

    run(test)


def test_rows_that_an_evaluation_rejects_are_left_out_and_not_counted() -> None:
    async def test() -> None:
        bench = RolloutBench(SMALL, judge=lambda row, _: None if row["number"] % 2 else 1.0)
        rows = [{"input_ids": [7], "number": number} for number in range(6)]
        episodes = await bench.drive(bench.executor.evaluate(rows, greedy()))

        assert [episode.task_id for episode in episodes] == ["eval/0", "eval/2", "eval/4"]
        assert bench.executor.stats().evaluated == 3
        await bench.close()

    run(test)


def test_an_evaluation_tolerates_what_training_tolerates() -> None:
    """A failed row is told and left out; past `max_failed_share` of the rows the evaluation fails, by the last one."""
    rows = [{"input_ids": [7], "number": 90 + number} for number in range(10)]

    async def evaluated(share: float) -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        bench = RolloutBench(
            evolve(SMALL, max_failed_share=share),
            judge=fails_on(93, RewardFailed("no number")),
            on_event=lambda kind, **fields: told.append((kind, fields.get("task_id", ""))),
        )
        episodes = await bench.drive(bench.executor.evaluate(rows, greedy()))
        await bench.close()
        assert [episode.task_id for episode in episodes] == [f"eval/{n}" for n in range(10) if n != 3]
        return [event for event in told if event[0] == "evaluation_failed"]

    async def test() -> None:
        assert await evaluated(0.1) == [("evaluation_failed", "eval/3")]
        with pytest.raises(EpisodeFailed, match=r"1 of 10 rows of the evaluation failed(.|\n)*eval/3"):
            await evaluated(0.05)
        with pytest.raises(EpisodeFailed, match=r"^episode eval/3"):
            await evaluated(0.0)

    run(test)
