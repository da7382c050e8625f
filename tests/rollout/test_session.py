"""What a workflow holds: seeds of its own, the run's parameters unless it gives others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from areal_core.contract.errors import ConfigError, RolloutError
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import SamplingParams
from areal_core.contract.workflow import RewardInput, Session
from areal_core.rollout.pool import InferencePool
from areal_core.rollout.session import PoolSession, PoolSessions, derive_seed
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import ScriptedEngine, ScriptedWorker
from areal_core.testing.rollouts import NoTokenizer, drive


class Bench:
    """One scripted replica and the sessions on it."""

    def __init__(self, seed: int = 1, sampling: SamplingParams | None = None) -> None:
        self.clock = StepClock()
        self.engine = ScriptedEngine(self.clock)
        self.sessions = PoolSessions(
            pool=InferencePool([ScriptedWorker(self.engine, clock=self.clock)], clock=self.clock),
            rewards=None,
            tokenizer=NoTokenizer(),
            sampling=sampling or SamplingParams(max_new_tokens=8),
            seed=seed,
        )

    def open(self, member: int = 0) -> PoolSession:
        return self.sessions.open(task_id=TaskId("train/0/1"), name=f"n{member}", seed_name=f"train/0/1#{member}.0")

    async def seeds(self, *params: SamplingParams | None, member: int = 0) -> list[int | None]:
        session = self.open(member)
        before = len(self.engine.requests)
        for sampling in params:
            await drive(self.clock, session.generate([5], sampling))
        return [request.sampling.seed for request in self.engine.requests[before:]]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_every_turn_of_every_member_has_a_seed_of_its_own() -> None:
    """Seeds repeat from run to run, and differ between turns, members and run seeds."""

    async def test() -> None:
        one = await Bench().seeds(None, None)
        assert one == await Bench().seeds(None, None)
        assert len({*one, *await Bench().seeds(None, None, member=1), *await Bench(seed=2).seeds(None, None)}) == 6
        assert all(seed is not None and 0 <= seed < 2**63 for seed in one)

    run(test)


def test_a_seed_the_workflow_gives_is_kept_and_one_of_the_run_is_a_base() -> None:
    """Only explicit parameters with a seed set it literally; otherwise all members would sample the same."""

    async def test() -> None:
        assert await Bench().seeds(SamplingParams(seed=42)) == [42]
        assert await Bench().seeds(SamplingParams(seed=None)) == [derive_seed(1, "train/0/1#0.0", 0)]
        based = Bench(sampling=SamplingParams(seed=42))
        assert await based.seeds(None) == [derive_seed(42, "train/0/1#0.0", 0)]

    run(test)


def test_it_is_a_session_and_ends_with_its_episode() -> None:
    """The contract's protocol holds; after close nothing more can be asked; a missing reward is named."""

    async def test() -> None:
        session = Bench().open()
        assert isinstance(session, Session)
        with pytest.raises(ConfigError, match="the run has none"):
            await session.reward(RewardInput(prompt="", completion="", completion_ids=(), stop_reason="stop", row={}))
        await session.close()
        with pytest.raises(RolloutError, match="is over"):
            await session.generate([5])

    run(test)


def test_tokens_are_counted() -> None:
    """`num_generated` adds up what every turn gave."""

    async def test() -> None:
        bench = Bench()
        session = bench.open()
        made = [await drive(bench.clock, session.generate([5])) for _ in range(3)]

        assert session.num_generated == sum(len(generation.output_ids) for generation in made) > 0

    run(test)
