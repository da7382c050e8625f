"""One agent's session behind its key: what it may ask, and what became of it.

Knows: the run's session, the recorder, limits, the reward that was told.
Does not know: HTTP, chats, or who the agent is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from attrs import define, evolve, field

from areal_agentic.endpoint import Export, SessionLimits
from areal_agentic.recorder import Recorder
from areal_agents.endpoint_config import EndpointConfig
from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation, Structure
from areal_core.contract.workflow import Session


class TooManyRequests(Exception):
    """The session made all the requests it may."""


@define(eq=False)
class AgentSession:
    """What stands behind one key."""

    session: Session
    config: EndpointConfig = EndpointConfig()
    limits: SessionLimits = SessionLimits()
    key: str = field(factory=lambda: f"areal-{secrets.token_urlsafe(24)}")
    recorder: Recorder = field(factory=Recorder)
    reward: float | None = None
    failure: BaseException | None = None
    last: tuple[Sequence[int], Generation] | None = None
    _num_asked: int = 0
    _places: asyncio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.concurrency)

    @property
    def num_answers(self) -> int:
        """Return how many requests were answered."""
        return self.recorder.num_answers

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return what to put among the episode's metrics."""
        trajectories = len(self.trajectories(0.0))
        return {"agent/requests": float(self.num_answers), "agent/trajectories": float(trajectories)}

    def trajectories(self, reward: float, *, turn_discount: float = 1.0) -> tuple[Trajectory, ...]:
        """Return what the policy said, exact tokens, each answer of it trained on exactly once."""
        individual = self.config.export == Export.INDIVIDUAL
        return self.recorder.trajectories(reward, turn_discount, individual=individual)

    async def ask(
        self,
        prompt_ids: Sequence[int],
        limit: int | None,
        stops: Sequence[str],
        n: int,
        structure: Structure | None = None,
    ) -> list[Generation]:
        """Generate `n` answers to a prompt and record them.

        Raises:
            TooManyRequests: the session made its requests.
            PromptTooLong, CapabilityError, BatchError: what was asked cannot be answered.
            NoReplica, GenerationFailed: the fleet failed.
        """
        self._num_asked += 1
        if self._num_asked > self.limits.max_requests:
            raise TooManyRequests(f"this session made {self.limits.max_requests} requests (max_requests)")
        own = self.session.sampling
        most = own.max_new_tokens if limit is None else min(limit, own.max_new_tokens)
        sampling = evolve(own, max_new_tokens=most, stop=(*own.stop, *stops))
        try:
            async with self._places, asyncio.TaskGroup() as scope:
                calls = [
                    scope.create_task(self.session.generate(prompt_ids, sampling, structure=structure))
                    for _ in range(n)
                ]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        generations = [call.result() for call in calls]
        self.recorder.answered(prompt_ids, generations)
        self.last = prompt_ids, generations[0]
        return generations
