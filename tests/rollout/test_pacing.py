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


def test_admission_moves_back_by_what_was_always_spare_and_forward_after_a_wait() -> None:
    """By half of the least spare of several batches; after a wait that it caused the next try takes twice as many."""
    pace = Pace(2)
    assert [pace.took(0.0, spare) for spare in (1.0, 0.8, 0.6, 1.0)] == [0.0, 0.0, 0.0, 0.3]
    assert pace.took(0.005, 0.0) == 0.3, "a wait that nobody notices"
    assert pace.took(0.1, 0.0) == 0.0

    assert [pace.took(0.0, 1.0) for _ in range(8)] == [0.0] * 7 + [0.5]


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
