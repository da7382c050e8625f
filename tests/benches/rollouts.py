"""A whole rollout side in this process: scripted replicas, a small workflow, an executor on a step clock.

Knows: how the parts of `areal_core.rollout` are put together.
Does not know: any model, process or second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import frozen

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.trajectory import from_generation
from areal_core.contract.workflow import Session
from areal_core.fleet.pool import InferencePool, PoolPolicy
from areal_core.observe.events import EventSink, ignore_event
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource
from areal_core.testing.clock import StepClock
from areal_core.testing.engines import Length, ScriptedEngine, ScriptedWorker

T = TypeVar("T")


@frozen(kw_only=True)
class RolloutParts:
    """The classes a rollout side is made of; give others to see what happens with them."""

    executor: Callable[..., RolloutExecutor] = RolloutExecutor
    tasks: Callable[..., TaskSource] = TaskSource
    pool: Callable[..., InferencePool] = InferencePool
    sessions: Callable[..., PoolSessions] = PoolSessions


SMALL = RolloutConfig(
    prompts_per_step=2, group_size=2, max_staleness=1, retries=0, sampling=SamplingParams(max_new_tokens=64)
)
"""Two groups of two in a batch, one version ahead at most, and no second try."""

Judge = Callable[[Mapping[str, Any], Generation], float | None]  # Any: the data set decides what a row holds


class ScriptedWorkflow:
    """Generate once from a row's `input_ids`; the judge gives the reward, rejects with None, or raises."""

    def __init__(self, judge: Judge = lambda _row, generation: float(len(generation.output_ids))) -> None:
        self._judge = judge

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
        """Make one trajectory. Any: as in the contract."""
        generation = await engine.generate(data["input_ids"])
        reward = self._judge(data, generation)
        return None if reward is None else from_generation(data["input_ids"], generation, reward)


class RolloutBench:
    """Everything an executor needs, within reach: `clock`, `engines`, `workers`, `pool`, `executor`, `events`.

    Example:
        bench = RolloutBench(RolloutConfig(prompts_per_step=2, group_size=2, max_staleness=1))
        groups = await bench.step()          # next batch, then the fleet and the executor move to the next version
        await bench.close()
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        num_rows: int = 64,
        rows: Sequence[Mapping[str, Any]] | None = None,  # Any: the data set decides what a row holds
        num_replicas: int = 1,
        judge: Judge | None = None,
        workflow: Any = None,  # Any: anything with arun_episode
        length: Length | None = None,
        policy: PoolPolicy | None = None,
        seed: int = 1,
        shuffle: bool = False,
        state: Mapping[str, Any] | None = None,  # Any: what an executor's state() gave
        on_event: EventSink = ignore_event,
        parts: RolloutParts | None = None,
        **options: Any,  # Any: further arguments of RolloutExecutor
    ) -> None:
        """Build and start; must be called inside an event loop."""
        parts = parts or RolloutParts()
        self.clock = StepClock()
        self.engines = [ScriptedEngine(self.clock, length=length) for _ in range(num_replicas)]
        self.workers = [
            ScriptedWorker(engine, id=f"infer/{number}", clock=self.clock) for number, engine in enumerate(self.engines)
        ]
        self.pool = parts.pool(self.workers, policy=policy, clock=self.clock)
        self.events: list[tuple[str, dict[str, object]]] = []
        if rows is None:
            rows = [{"input_ids": [3 + number % 20, 4], "number": number} for number in range(num_rows)]
        self.executor = parts.executor(
            workflow=workflow or (ScriptedWorkflow(judge) if judge else ScriptedWorkflow()),
            tasks=parts.tasks(rows, seed=seed, shuffle=shuffle),
            sessions=parts.sessions(
                pool=self.pool, rewards=None, tokenizer=NoTokenizer(), sampling=config.sampling, seed=seed
            ),
            config=config,
            on_event=self._record,
            clock=self.clock,
            **options,
        )
        self._on_event = on_event
        self.version = 0
        if state is not None:
            self.executor.restore(state)
            self.version = int(state["version"])
            self._serve(self.version)
        self.executor.start()

    async def step(self) -> list[Any]:
        """Take the next batch and move on to the next version. Any: groups."""
        groups = await self.drive(self.executor.next_batch())
        self.version += 1
        self._serve(self.version)
        self.executor.set_version(self.version)
        return groups

    async def drive(self, awaitable: Awaitable[T]) -> T:
        """Step the clock from deadline to deadline until the awaitable is done.

        Raises:
            RuntimeError: nobody sleeps and it is not done: a deadlock.
        """
        return await drive(self.clock, awaitable)

    async def close(self) -> None:
        """Close the executor."""
        await self.executor.close()

    def kinds(self, kind: str) -> list[dict[str, object]]:
        """Return the fields of every event of a kind."""
        return [fields for name, fields in self.events if name == kind]

    def _serve(self, version: int) -> None:
        for engine in self.engines:
            engine.version = version

    def _record(self, kind: str, **fields: object) -> None:
        self.events.append((kind, fields))
        self._on_event(kind, **fields)


class NoTokenizer:
    """A tokenizer for workflows that use none: every method raises."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raise."""
        raise AssertionError("this run has no tokenizer")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Raise."""
        raise AssertionError("this run has no tokenizer")

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Raise. Any: as in the contract."""
        raise AssertionError("this run has no tokenizer")


async def drive(clock: StepClock, awaitable: Awaitable[T]) -> T:
    """Step the clock from deadline to deadline until the awaitable is done; return its result.

    Raises:
        RuntimeError: nobody sleeps and it is not done: a deadlock.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await clock.settle()
        while not task.done():
            deadline = clock.next_deadline
            if deadline is None:
                raise RuntimeError("deadlock: nobody sleeps, and what is waited for is not done")
            await clock.advance(deadline - clock.now())
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


def greedy() -> SamplingParams:
    """Return parameters as evaluation uses them."""
    return SamplingParams(temperature=0.0, max_new_tokens=16)


def indices(groups: list[EpisodeGroup]) -> list[int]:
    """Return the tasks of groups by number."""
    return [group.task.index for group in groups]


def fails_on(number: int, error: BaseException) -> Callable[[Mapping[str, Any], Generation], float]:
    """Return a judge that raises for one row."""

    def judge(row: Mapping[str, Any], generation: Generation) -> float:
        if row["number"] == number:
            raise error
        return 1.0

    return judge
