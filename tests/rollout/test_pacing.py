"""Admission just in time: as fast as admission as early as possible, and fresher; it can only delay."""

from __future__ import annotations

import asyncio
import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.benches.rollouts import RolloutBench
from tests.rollout.test_staleness import WaitMachine

from areal_algorithms.pacing import Pace
from areal_core.config.schema import Admission, RolloutConfig
from areal_core.contract.inference import GenerationRequest, SamplingParams


class PacedMachine(WaitMachine):
    """Whatever an estimate says and whenever it changes: the bound holds, and the next batch can be completed."""

    @rule(share=st.floats(0.0, 1.0))
    def hold_back(self, share: float) -> None:
        self.gate.held_back = share * max(0.0, self.gate.max_staleness - 1.0)


TestPaced = PacedMachine.TestCase
TestPaced.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(bound=st.integers(0, 5), batches=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 9.0)), max_size=200))
def test_at_least_one_batch_is_made_while_another_is_trained_on(bound: int, batches: list[tuple[float, float]]) -> None:
    """Whatever was measured, admission stays behind the bound by less than the bound; by nothing where it is 0 or 1."""
    pace = Pace(bound)
    for waited, spare in batches:
        assert 0.0 <= pace.took(waited, spare) <= max(0.0, bound - 1.0)


def test_admission_moves_back_by_what_was_always_spare() -> None:
    """By half of the least spare of several batches, or all of little; of a batch that was late nothing was spare."""
    little = Pace(2)
    assert [little.took(0.0, 0.1) for _ in range(4)][-1] == 0.1

    pace = Pace(2)
    assert [pace.took(0.0, spare) for spare in (1.0, 0.8, 0.6, 1.0)] == [0.0, 0.0, 0.0, 0.3]
    assert [pace.took(waited, 0.6) for waited in (0.005, 0.0, 0.0, 0.0)] == [0.3, 0.3, 0.3, 0.6], "nobody notices that"
    assert [pace.took(waited, 0.6) for waited in (0.1, 0.0, 0.0, 0.0)] == [0.6] * 4


def test_a_late_batch_now_and_then_is_borne_and_two_in_a_row_move_admission_forward() -> None:
    """After that the next try takes twice as many batches."""
    pace = Pace(2)
    assert [pace.took(0.0, 1.0) for _ in range(4)][-1] == 0.5
    assert [pace.took(waited, 0.0) for waited in (0.2, 0.0, 0.2, 0.0)] == [0.5] * 4
    assert [pace.took(0.1, 0.0) for _ in range(2)] == [0.5, pytest.approx(0.05)]
    assert [pace.took(0.0, 1.0) for _ in range(8)] == [pytest.approx(held) for held in [0.05] * 7 + [0.55]]


@given(batches=st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.005, 0.05, 0.4]), st.floats(0.0, 3.0)), max_size=300))
def test_waits_that_are_borne_are_few(batches: list[tuple[float, float]]) -> None:
    """While admission stays behind the bound and does not move forward: 1.5% of the batches, and of 64 more."""
    pace, waits = Pace(3), [0.0]
    for waited, spare in batches:
        before = pace.held_back
        after = pace.took(waited, spare)
        waits = [*waits, waited] if 0.0 < before <= after else []
        assert sum(waits) <= 0.015 * (64 + len(waits)) + 1e-9


def lengths(kind: str, request: GenerationRequest) -> int:
    """Return how many seconds a request takes: its tokens."""
    draw = random.Random(request.sampling.seed)
    return draw.randint(5, 15) if kind == "even" else draw.choices((4, 8, 16, 32), (50, 25, 17, 8))[0]


async def trained(kind: str, admission: Admission, *, bound: int, seconds: float) -> tuple[float, float]:
    """Return virtual seconds a step and mean staleness after the first 30 steps of 90, a step training so long."""
    config = RolloutConfig(
        prompts_per_step=4,
        group_size=2,
        max_staleness=bound,
        admission=admission,
        sampling=SamplingParams(max_new_tokens=64),
    )
    bench = RolloutBench(config, length=lambda request: lengths(kind, request))
    began, ages = 0.0, []
    for step in range(90):
        groups = await bench.drive(bench.executor.next_batch())
        if step == 30:
            began = bench.clock.now()
        ages += [age for group in groups for age in group.staleness if step >= 30]
        await bench.clock.advance(seconds)
        bench.version += 1
        bench._serve(bench.version)
        bench.executor.set_version(bench.version)
    took = (bench.clock.now() - began) / 60
    await bench.close()
    return took, mean(ages)


@pytest.mark.parametrize(
    ("kind", "bound", "seconds", "share"), [("even", 2, 20.0, 0.51), ("even", 4, 8.0, 0.51), ("tailed", 4, 40.0, 0.3)]
)
def test_as_fast_as_early_admission_and_half_as_stale(kind: str, bound: int, seconds: float, share: float) -> None:
    """Where the trainer is the slower side: the same virtual seconds within 2%, no more than half the staleness."""
    eager = asyncio.run(trained(kind, Admission.EAGER, bound=bound, seconds=seconds))
    late = asyncio.run(trained(kind, Admission.JUST_IN_TIME, bound=bound, seconds=seconds))

    assert eager[1] == bound
    assert late[1] <= share * bound
    assert late[0] <= 1.02 * eager[0]


def test_where_generation_is_the_slower_side_nothing_is_lost() -> None:
    """The trainer waits for every batch: admission stays as early as it may be, and so does the speed."""
    eager = asyncio.run(trained("tailed", Admission.EAGER, bound=2, seconds=4.0))

    assert asyncio.run(trained("tailed", Admission.JUST_IN_TIME, bound=2, seconds=4.0)) == eager
