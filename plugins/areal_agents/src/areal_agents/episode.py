"""One agent's episode behind its key: what it may ask, and what became of it.

Knows: the session, the recorder, limits, the reward that was told.
Does not know: HTTP, or who the agent is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import define, evolve, field

from areal_agentic.recorder import Recorder
from areal_agents.config import AgentConfig
from areal_core.contract.inference import Generation
from areal_core.contract.workflow import Session


class TooManyRequests(Exception):
    """The episode made all the requests it may."""


@define(eq=False)
class AgentEpisode:
    """What stands behind one key."""

    session: Session
    config: AgentConfig
    recorder: Recorder = field(factory=Recorder)
    reward: float | None = None
    """Told by call; the last one counts."""
    failure: BaseException | None = None
    """What the fleet failed with: the episode fails with it, whatever the agent makes of the error it was told."""
    last: tuple[Sequence[int], Generation] | None = None
    """The newest prompt and its first answer, for a reward function that judges it."""
    _num_asked: int = 0
    _places: asyncio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.config.concurrency)

    async def ask(
        self, prompt_ids: Sequence[int], limit: int | None, stops: tuple[str, ...], n: int
    ) -> list[Generation]:
        """Generate `n` answers to a prompt and record them.

        Raises:
            TooManyRequests: the episode made its requests.
            PromptTooLong, CapabilityError, BatchError: what was asked cannot be answered.
            NoReplica, GenerationFailed: the fleet failed.
        """
        self._num_asked += 1
        if self._num_asked > self.config.max_requests:
            raise TooManyRequests(f"this episode made {self.config.max_requests} requests (options.max_requests)")
        own = self.session.sampling
        most = own.max_new_tokens if limit is None else min(limit, own.max_new_tokens)
        sampling = evolve(own, max_new_tokens=most, stop=(*own.stop, *stops))
        branch = self.recorder.begin(prompt_ids)
        try:
            async with self._places, asyncio.TaskGroup() as scope:
                calls = [scope.create_task(self.session.generate(prompt_ids, sampling)) for _ in range(n)]
        except BaseExceptionGroup as group:
            self.recorder.release(branch)
            raise group.exceptions[0] from None
        except BaseException:
            self.recorder.release(branch)
            raise
        generations = [call.result() for call in calls]
        self.recorder.answered(branch, prompt_ids, generations)
        self.last = prompt_ids, generations[0]
        return generations
