"""One agent's session behind its key: what it may ask, and what became of it.

Knows: the run's session, the recorder, limits, the reward that was told.
Does not know: HTTP, what an API calls things, or who the agent is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from attrs import define, evolve, field

from areal_agentic.endpoint import Export, SessionLimits
from areal_agentic.recorder import Recorder
from areal_agentic.renderer import BoundRenderer, Message
from areal_agents.asked import Ask
from areal_agents.conversation import Conversations, Restart
from areal_agents.endpoint_config import EndpointConfig
from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation
from areal_core.contract.workflow import Session

T = TypeVar("T")


class TooManyRequests(Exception):
    """The session made all the requests it may."""


class SessionOver(Exception):
    """The session was closed while a request of it was being answered."""


@define(eq=False)
class AgentSession:
    """What stands behind one key. `areal_agentic.endpoint.OpenSession` says what others may use."""

    session: Session
    config: EndpointConfig = EndpointConfig()
    limits: SessionLimits = SessionLimits()
    bind: Callable[[], BoundRenderer] | None = None
    """Gives the renderer of the session's tokenizer, when the first chat is asked."""
    key: str = field(factory=lambda: f"areal-{secrets.token_urlsafe(24)}")
    recorder: Recorder = field(factory=Recorder)
    reward: float | None = None
    failure: BaseException | None = None
    refused: BaseException | None = None
    """What was wrong with the newest request that was refused for what it asked."""
    last: tuple[Sequence[int], Generation] | None = None
    responses: dict[str, Sequence[Message]] = field(factory=dict)
    """Conversations by the id of the response they ended with, for APIs whose requests name one."""
    engine_reads_calls: bool = True
    """Whether it is worth asking the engine for calls of tools."""
    _conversations: Conversations | None = None
    _restarted: Counter[Restart] = field(factory=Counter)
    _num_asked: int = 0
    _places: asyncio.Semaphore = field(init=False)
    _at_work: set[asyncio.Task[Any]] = field(factory=set)  # Any: whatever a request gives
    _over: bool = False

    def __attrs_post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.concurrency)

    @property
    def num_answers(self) -> int:
        """Return how many requests were answered."""
        return self.recorder.num_answers

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return what to put among the episode's metrics."""
        trajectories = self.recorder.num_trajectories(individual=self._individual)
        return {
            "agent/requests": float(self.num_answers),
            "agent/trajectories": float(trajectories),
            "agent/restarted": float(self._restarted.total()),
            **{f"agent/restarted/{reason}": float(number) for reason, number in self._restarted.items()},
        }

    @property
    def conversations(self) -> Conversations:
        """Return those that were answered.

        Raises:
            DatasetError: the model has no renderer.
        """
        if self._conversations is None:
            assert self.bind is not None
            self._conversations = Conversations(self.bind(), self.config.keep_thoughts)
        return self._conversations

    def trajectories(self, reward: float, *, turn_discount: float = 1.0) -> tuple[Trajectory, ...]:
        """Return what the policy said, exact tokens, each answer of it trained on exactly once."""
        return self.recorder.trajectories(reward, turn_discount, individual=self._individual)

    def admit(self) -> None:
        """Count a request that asks for an answer.

        Raises:
            TooManyRequests: the session made all it may.
        """
        if self._num_asked == self.limits.max_requests:
            raise TooManyRequests(f"this session made {self.limits.max_requests} requests, all it may (max_requests)")
        self._num_asked += 1

    async def generate(
        self, prompt_ids: Sequence[int], ask: Ask, ends: Collection[int] = frozenset()
    ) -> list[Generation]:
        """Return the answers to a prompt, as the run samples; `ends` are tokens that end one, beside the run's own.

        Raises:
            PromptTooLong, CapabilityError, BatchError: what was asked cannot be answered.
            NoReplica, GenerationFailed: the fleet failed.
        """
        own = self.session.sampling
        most = own.max_new_tokens if ask.limit is None else min(ask.limit, own.max_new_tokens)
        stop_token_ids = (*own.stop_token_ids, *sorted(set(ends) - set(own.stop_token_ids)))
        sampling = evolve(own, max_new_tokens=most, stop=(*own.stop, *ask.stops), stop_token_ids=stop_token_ids)
        try:
            async with self._places, asyncio.TaskGroup() as scope:
                calls = [
                    scope.create_task(self.session.generate(prompt_ids, sampling, structure=ask.structure))
                    for _ in range(ask.n)
                ]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return [call.result() for call in calls]

    def record(self, prompt_ids: Sequence[int], generations: Sequence[Generation], restart: Restart | None) -> None:
        """Keep answers that are about to be told, and why their conversation began anew, if it did."""
        if restart is not None and self.recorder.begins(prompt_ids):
            self._restarted[restart] += 1
        self.recorder.answered(prompt_ids, generations)
        self.last = prompt_ids, generations[0]

    async def during(self, work: Coroutine[Any, Any, T]) -> T:  # Any: what coroutines send is nobody's affair
        """Await work that is cancelled when the session is over.

        Raises:
            SessionOver: it was.
        """
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._over:
                raise SessionOver("the session was closed while this was being answered") from None
            raise
        finally:
            task.cancel()
            self._at_work.discard(task)

    def close(self) -> None:
        """Cancel what is being answered. Idempotent."""
        self._over = True
        for task in self._at_work:
            task.cancel()

    @property
    def _individual(self) -> bool:
        return self.config.export == Export.INDIVIDUAL
