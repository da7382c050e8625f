"""One episode's view of the fleet: seeds of its own, one home replica, one place to be cancelled.

Knows: which episode it serves and how many turns it took.
Does not know: groups as a whole, staleness, or what the workflow does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from attrs import evolve

from areal_core.contract.errors import ConfigError, RolloutError
from areal_core.contract.ids import GroupId, RequestId, TaskId
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest, SamplingParams, Structure
from areal_core.contract.optional import ToolParse
from areal_core.contract.trajectory import NO_VERSION
from areal_core.contract.workflow import RewardInput, RewardResult, Tokenizer
from areal_core.plugins.extensions import RewardPool

_NO_EXTRAS: Mapping[str, Any] = MappingProxyType({})  # one for all: a hundred thousand requests may be in flight


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**63) that depends on every part and on nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Fleet(Protocol):
    """Who answers the requests of sessions: an `InferencePool`, here or at the end of a line."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation: ...
    async def parse_tool_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]], *, affinity: Sequence[str] = ()
    ) -> ToolParse: ...  # Any: JSON
    def home(self, affinity: Sequence[str]) -> str: ...


class PoolSession:
    """Implements `contract.Session` on an inference pool and a reward pool."""

    __slots__ = (
        *("_affinity", "_closed", "_name", "_num_turns", "_seed_name", "_source", "_waiting"),
        *("group_id", "image_token_id", "last_reward", "num_generated", "sampling", "task_id", "tokenizer", "turns"),
    )

    def __init__(
        self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams, source: PoolSessions
    ) -> None:
        """Made by `PoolSessions.open`. `name` is unique among live sessions, `seed_name` decides the seeds."""
        self.task_id = task_id
        self.group_id = GroupId(task_id)
        self.sampling = sampling
        self.tokenizer = source.tokenizer
        self.image_token_id = source.image_token_id
        self.num_generated = 0
        self.turns: tuple[tuple[GenerationRequest, Generation], ...] = ()
        """What was asked and generated, in the order of the answers."""
        self.last_reward: RewardResult | None = None
        self._name = name = seed_name if name == seed_name else name  # one text in memory where there would be two
        self._affinity = (name, self.group_id)
        self._seed_name = seed_name
        self._source = source
        self._num_turns = 0
        self._waiting: tuple[asyncio.Task[object], ...] = ()
        self._closed = False

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        structure: Structure | None = None,
        images: Sequence[bytes] = (),
        adapter: str = "",
    ) -> Generation:
        """Generate one turn; with no seed, or that of the session's own sampling, its seed is of this turn alone."""
        request = GenerationRequest(
            request_id=RequestId(f"{self._name}:{self._num_turns}"),
            input_ids=tuple(input_ids),
            sampling=self._seeded(self.sampling if sampling is None else sampling),
            structure=structure,
            extras={IMAGES: tuple(images)} if images else _NO_EXTRAS,
            adapter=adapter,
        )
        self._num_turns += 1
        task = self._begin()
        try:
            generation = await self._source.pool.generate(request, affinity=self._affinity)
        finally:
            self._end(task)
        if adapter:  # no version of the policy made it
            spans = [evolve(span, version=NO_VERSION) for span in generation.version_spans]
            generation = evolve(generation, version_spans=spans)
        self.num_generated += len(generation.output_ids)
        self.turns += ((request, generation),)
        return generation

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Have a replica read an output. Any: as in the contract."""
        task = self._begin()
        try:
            return await self._source.pool.parse_tool_calls(text, tools, affinity=self._affinity)
        finally:
            self._end(task)

    async def reward(self, value: RewardInput) -> RewardResult:
        """Score in the reward pool."""
        if self._source.rewards is None:
            raise ConfigError(
                "the workflow asks for a reward, the run has none",
                fix="name a reward function under rollout.reward.name",
            )
        task = self._begin()
        try:
            self.last_reward = await self._source.rewards.score(value)
        finally:
            self._end(task)
        return self.last_reward

    @property
    def home(self) -> str:
        """Return the replica of its last request, empty before the first."""
        return self._source.pool.home(self._affinity)

    async def close(self) -> None:
        """Cancel requests that tasks of the workflow's own still wait for. Idempotent."""
        self._closed = True
        waiting = self._waiting
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.gather(*waiting, return_exceptions=True)

    def _seeded(self, sampling: SamplingParams) -> SamplingParams:
        """Return how the next turn is drawn: with no seed, or the session's own, with one of this turn alone."""
        if sampling.seed not in (None, self.sampling.seed):
            return sampling
        base = self._source.seed if sampling.seed is None else sampling.seed
        return evolve(sampling, seed=derive_seed(base, self._seed_name, self._num_turns))

    def _begin(self) -> asyncio.Task[object]:
        """Remember the current task while it waits for the fleet; returns it, for `_end`."""
        if self._closed:
            raise RolloutError(f"the session of {self.task_id} is over", why="a task outlived the episode that made it")
        task = asyncio.current_task()
        assert task is not None
        self._waiting += (task,)
        return task

    def _end(self, task: asyncio.Task[object]) -> None:
        self._waiting = tuple(other for other in self._waiting if other is not task)


class PoolSessions:
    """Opens the sessions of a run. Held by the executor."""

    def __init__(
        self,
        *,
        pool: Fleet,
        rewards: RewardPool | None,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        seed: int,
        image_token_id: int | None = None,
    ) -> None:
        """Remember what every session shares; `seed` is the run's, `image_token_id` the policy's."""
        self.pool = pool
        self.rewards = rewards
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.seed = seed
        self.image_token_id = image_token_id

    def open(
        self, *, task_id: TaskId, name: str, seed_name: str, sampling: SamplingParams | None = None
    ) -> PoolSession:
        """Open the session of one episode; the group is the task."""
        chosen = self.sampling if sampling is None else sampling
        return PoolSession(task_id=task_id, name=name, seed_name=seed_name, sampling=chosen, source=self)
